"""Why prompt tokens had to be computed again: every reason, in the one table that metrics, docs and pages come from.

A request's tokens are explained by a ladder of prefix lengths, each at least as long as the one before:

``confirmed`` <= ``chosen`` <= ``anywhere`` <= ``seen_here`` <= ``seen`` <= ``reference`` <= ``reusable`` <= ``prompt``

What stands between two rungs is missed for one of the reasons of the upper one, so hits and reasons add up to the
prompt's tokens by construction. ``model_changed``, ``model_updated``, ``template_changed``, ``tokenizer_changed`` and
``prompt_version_changed`` stand below ``seen`` as well, where the very same tokens were computed before such a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.canonical import RuleName


class Rung(StrEnum):
    """A prefix of the prompt, by what is known of it."""

    CONFIRMED = "confirmed"
    """Not computed again, as the engine reports; as was predicted where it reports nothing. These are the hits."""
    CHOSEN = "chosen"
    """Expected to be held by the chosen replica."""
    ANYWHERE = "anywhere"
    """Expected to be held by some replica."""
    SEEN_HERE = "seen_here"
    """Computed before in the request's prefix space."""
    SEEN = "seen"
    """Computed before in any space."""
    REFERENCE = "reference"
    """Equal to the reference request's, to the token. What is beyond ``seen`` does not fill a block."""
    REUSABLE = "reusable"
    """As before, plus text behind the first difference that the reference contains, too."""
    PROMPT = "prompt"
    """All of it."""


class Reason(StrEnum):
    """Why a prompt token had to be computed. The value is the code that metrics and the API show."""

    STALE_INDEX = "stale_index"
    INDEX_BLIND = "index_blind"
    CACHE_BYPASSED = "cache_bypassed"
    LOAD_BALANCED = "load_balanced"
    REPLICA_UNAVAILABLE = "replica_unavailable"
    FAILOVER = "failover"
    PINNED = "pinned"
    HELD_OUT = "held_out"
    EVICTED = "evicted"
    EXPIRED = "expired"
    REPLICA_RESTARTED = "replica_restarted"
    REPLICA_LEFT = "replica_left"
    TENANT_ISOLATED = "tenant_isolated"
    SCOPE_ISOLATED = "scope_isolated"
    ADAPTER_CHANGED = "adapter_changed"
    RESET = "reset"
    BLOCK_BOUNDARY = "block_boundary"
    TOO_SHORT = "too_short"
    DYNAMIC_TIME = "dynamic_time"
    DYNAMIC_ID = "dynamic_id"
    USER_DATA = "user_data"
    WHITESPACE = "whitespace"
    ROLE_ORDER = "role_order"
    DOCUMENTS_REORDERED = "documents_reordered"
    TOOLS_CHANGED = "tools_changed"
    TOOLS_REORDERED = "tools_reordered"
    SYSTEM_CHANGED = "system_changed"
    LANGUAGE_CHANGED = "language_changed"
    HISTORY_TRIMMED = "history_trimmed"
    HISTORY_EDITED = "history_edited"
    REPLY_RERENDERED = "reply_rerendered"
    CONTEXT_LOST = "context_lost"
    ARGUMENTS_CHANGED = "arguments_changed"
    TEMPLATE_CHANGED = "template_changed"
    TEMPLATE_DROPPED = "template_dropped"
    PROMPT_VERSION_CHANGED = "prompt_version_changed"
    TOKENIZER_CHANGED = "tokenizer_changed"
    MODEL_UPDATED = "model_updated"
    MODEL_CHANGED = "model_changed"
    UNCLASSIFIED = "unclassified"
    NEW_CONTENT = "new_content"
    FIRST_SEEN = "first_seen"


class Remedy(StrEnum):
    """Where a miss can be fixed."""

    APPLICATION = "application"
    """The authors of the prompts."""
    GATEWAY = "gateway"
    """The operator of the gateway."""
    CAPACITY = "capacity"
    """The owner of the replicas: more memory or replicas."""
    NONE = "nobody"
    """Not fixable: inherent in caching, or intended."""


@dataclass(frozen=True, slots=True)
class ReasonText:
    """What is said about a reason.

    Attributes:
        rung: The rung below which its tokens stand.
        title: A few words, for a chart's legend.
        meaning: What happened, in one or two sentences.
        change: What to do about it without a rule of canonicalization, in one or two sentences.
        remedy: Who can.
        rules: Rules of canonicalization that remove it in the gateway; which to try first comes first.
        subject: For reasons found at a place of the prompt, the beginning of a sentence about it: "The time" in
            "The time in messages[0].content costs …". Empty: the title.
        by_rule: What a rule does about it, with the line of the configuration, in one sentence; empty if none does.
        when_on: What is left to do in the configuration where that rule is on; empty if nothing is.
    """

    rung: Rung
    title: str
    meaning: str
    change: str
    remedy: Remedy
    rules: tuple[RuleName, ...] = ()
    subject: str = ""
    by_rule: str = ""
    when_on: str = ""

    @property
    def advice(self) -> str:
        """What to do about it where nothing is known but the reason."""
        return " ".join(filter(None, (self.change, self.by_rule)))


_A, _G, _C, _N = Remedy.APPLICATION, Remedy.GATEWAY, Remedy.CAPACITY, Remedy.NONE

REASONS: Mapping[Reason, ReasonText] = {
    Reason.STALE_INDEX: ReasonText(
        Rung.CHOSEN,
        "Index out of date",
        "The chosen replica was believed to hold these tokens, and the engine did not have them any more.",
        "Turn on KV events (--kv-events-config), or look whether the feed is live under /admin/api/replicas.",
        _G,
    ),
    Reason.INDEX_BLIND: ReasonText(
        Rung.CHOSEN,
        "Index blind",
        "The prompt could not be tokenized or looked up, so it was routed without knowing who holds it.",
        "Give the model a local tokenizer, and look into the log for tokenizer_failed and index_failed.",
        _G,
    ),
    Reason.CACHE_BYPASSED: ReasonText(
        Rung.CHOSEN,
        "Cache bypassed",
        "The engine computes such a request without using its cache: it asks for the prompt's log probabilities, or "
        "prefix caching is off.",
        "Leave prompt_logprobs (echo with logprobs) out, or start the engine with prefix caching.",
        _A,
    ),
    Reason.LOAD_BALANCED: ReasonText(
        Rung.ANYWHERE,
        "Sent elsewhere for load",
        "Another replica held more of the prompt, but would have answered later: its queue was longer than computing "
        "these tokens again.",
        "Usually right. If it is much, add replicas, or raise placement.miss_weight to wait longer for a warm one.",
        _C,
    ),
    Reason.REPLICA_UNAVAILABLE: ReasonText(
        Rung.ANYWHERE,
        "Holder not available",
        "The replica that held these tokens was down, was just avoided after a failure, or was being warmed.",
        "Repair what /admin/api/replicas and the log (replica_down, attempt_failed) show of it, or add replicas: then "
        "what is often used is held by more than one.",
        _C,
    ),
    Reason.FAILOVER: ReasonText(
        Rung.ANYWHERE,
        "Failed over",
        "The replica that held these tokens was tried first and could not be connected to.",
        "A replica that refuses connections (attempt_failed in the log) is restarting or overloaded: drain it before a "
        "restart (POST /admin/api/replicas/drain), or add replicas.",
        _C,
    ),
    Reason.PINNED: ReasonText(
        Rung.ANYWHERE,
        "Pinned elsewhere",
        "The request may only go to certain replicas (a region, or the rank it asks for), and another one held these "
        "tokens.",
        "Leave x-data-parallel-rank out, or give the tenant's regions enough replicas of their own.",
        _A,
    ),
    Reason.HELD_OUT: ReasonText(
        Rung.ANYWHERE,
        "Held out by the experiment",
        "These tokens were cached, and the experiment served the request without the gateway's help, to compare.",
        "This is the price of the experiment. End it with experiment.cold_share: 0, or lower the share.",
        _N,
    ),
    Reason.EVICTED: ReasonText(
        Rung.SEEN_HERE,
        "Evicted",
        "These tokens were computed before, and every replica has since given their blocks to others.",
        "The cache is too small for what is in use: more replicas, more GPU memory, a smaller max_model_len, or CPU "
        "offload.",
        _C,
    ),
    Reason.EXPIRED: ReasonText(
        Rung.SEEN_HERE,
        "Expired",
        "These tokens were computed in an earlier life of the prefix space, which ended because it was not used for "
        "long or became too old.",
        "Raise spaces.idle_ttl_seconds or max_age_seconds, for all or for this tenant, if policy allows; warm.again "
        "sends declared and hottest prefixes again.",
        _G,
    ),
    Reason.REPLICA_RESTARTED: ReasonText(
        Rung.SEEN_HERE,
        "Replica restarted",
        "The replica that computed these tokens was restarted and came back with an empty cache.",
        "Declare the most used prefixes under warm.file: a restarted replica is then warmed before it takes traffic.",
        _C,
    ),
    Reason.REPLICA_LEFT: ReasonText(
        Rung.SEEN_HERE,
        "Replica gone",
        "The replica that computed these tokens is gone, and its cache with it.",
        "The price of scaling down: do it less often, and when there is little traffic. Otherwise see why it went: the "
        "log has replica_down.",
        _C,
    ),
    Reason.TENANT_ISOLATED: ReasonText(
        Rung.SEEN,
        "Kept apart by tenant",
        "Another tenant computed these tokens; tenants do not share.",
        "Meant so. Tenants that trust each other may share: give them one group, and set spaces.isolation: group.",
        _G,
    ),
    Reason.SCOPE_ISOLATED: ReasonText(
        Rung.SEEN,
        "Kept apart by scope",
        "The same tenant computed these tokens for another application, in another scope or region, or "
        "with another cache_salt.",
        "Use applications (x-prompt-id), scopes (x-cache-scope), regions and client salts only where data must be kept "
        "apart.",
        _A,
    ),
    Reason.ADAPTER_CHANGED: ReasonText(
        Rung.SEEN,
        "Other adapter",
        "These tokens were computed with another LoRA adapter; an adapter's keys and values are its own.",
        "Choose the adapter once per conversation, and keep sharing prompts on the base model where possible.",
        _A,
    ),
    Reason.RESET: ReasonText(
        Rung.SEEN,
        "Reset",
        "These tokens were computed before the prefix space was reset.",
        "Meant so; the audit log has who did it. Reset less than everything (a tenant, a model); warm.again sends "
        "declared and hottest prefixes afterwards.",
        _G,
    ),
    Reason.BLOCK_BOUNDARY: ReasonText(
        Rung.REFERENCE,
        "Block rounding",
        "Engines reuse whole blocks only, and always compute the last token: these equal tokens do not fill one.",
        "A cost of paging, at most one block per request. A smaller --block-size loses less.",
        _N,
    ),
    Reason.TOO_SHORT: ReasonText(
        Rung.REFERENCE,
        "Shorter than a block",
        "The whole prompt is shorter than one cache block, so nothing of it can ever be reused.",
        "Nothing to gain here.",
        _N,
    ),
    Reason.DYNAMIC_TIME: ReasonText(
        Rung.REUSABLE,
        "A time in the prompt",
        "A date or a time that changes from request to request stands in front of text that repeats.",
        "Move it behind what repeats (into the last user message), or round it to the day.",
        _A,
        (RuleName.DYNAMIC_SUFFIX, RuleName.PATTERN),
        subject="The time",
        by_rule="In a system message, canon: {rules: {dynamic-suffix: apply}} moves it.",
        when_on="dynamic-suffix is on: declare the place as a slot (canon.dynamic_suffix.slots), and it is moved.",
    ),
    Reason.DYNAMIC_ID: ReasonText(
        Rung.REUSABLE,
        "An id in the prompt",
        "An id, a token or a counter that changes from request to request stands in front of text that repeats.",
        "Take it out of the prompt, or move it behind what repeats.",
        _A,
        (RuleName.DYNAMIC_SUFFIX, RuleName.PATTERN),
        subject="The id",
        by_rule="In a system message, canon: {rules: {dynamic-suffix: apply}} moves it.",
        when_on="dynamic-suffix is on: declare the place as a slot (canon.dynamic_suffix.slots), and it is moved.",
    ),
    Reason.USER_DATA: ReasonText(
        Rung.REUSABLE,
        "User data in the template",
        "Data of one user (a name, an address, their own words) stands in front of text that all users share.",
        "Put the shared text first and the user's data behind it.",
        _A,
        (RuleName.DYNAMIC_SUFFIX,),
        subject="The user's data",
        by_rule="In a system message, declare its place as a slot and set canon: {rules: {dynamic-suffix: apply}}.",
        when_on="dynamic-suffix is on: declare the place as a slot (canon.dynamic_suffix.slots), and it is moved.",
    ),
    Reason.WHITESPACE: ReasonText(
        Rung.REUSABLE,
        "Whitespace or Unicode form",
        "The text is the same but for blanks, line ends, quotes, dashes, bullets, the order of keys in JSON, or the "
        "Unicode form of its letters.",
        "Build the prompt from one template in one place.",
        _A,
        (RuleName.UNICODE, RuleName.WHITESPACE, RuleName.INNER_SPACES, RuleName.DASH_STYLE, RuleName.JSON_TEXT),
        subject="Other whitespace or Unicode forms",
        by_rule="Or set canon: {rules: {unicode: apply, whitespace: apply}}, and the gateway evens it out.",
    ),
    Reason.ROLE_ORDER: ReasonText(
        Rung.REUSABLE,
        "Messages in another order",
        "The same messages come in another order, such as a system message behind the user's.",
        "Send messages in one order, the system message first.",
        _A,
        (RuleName.ROLE_ORDER, RuleName.SYSTEM_ORDER, RuleName.INLINE_SYSTEM),
        subject="The changing order of messages",
        by_rule="Or set canon: {rules: {role-order: apply}}, and the gateway orders them.",
    ),
    Reason.DOCUMENTS_REORDERED: ReasonText(
        Rung.REUSABLE,
        "Documents in another order",
        "The same blocks of text, such as retrieved documents or examples, come in another order.",
        "Sort them by their ids before you number them.",
        _A,
        (RuleName.DOCUMENT_ORDER,),
        subject="The changing order of documents",
        by_rule="Or declare them (canon.document_order), set canon: {rules: {document-order: apply}}, and the gateway "
        "sorts them.",
        when_on="Or declare them (canon.document_order): document-order is on, and sorts what is declared.",
    ),
    Reason.TOOLS_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Tools changed",
        "A tool was added, removed or described differently, in front of everything that follows the tools.",
        "Send the same tools with every request of an application, and restrict their use by tool_choice.",
        _A,
        subject="The change of tools",
    ),
    Reason.TOOLS_REORDERED: ReasonText(
        Rung.REUSABLE,
        "Tools in another order",
        "The same tools come in another order, or with the keys of their schemas in another order.",
        "Sort tools by name and dump their schemas with sorted keys.",
        _A,
        (RuleName.TOOL_ORDER, RuleName.JSON_KEYS),
        subject="The changing order of tools",
        by_rule="Or set canon: {rules: {tool-order: apply, json-keys: apply}}, and the gateway does.",
    ),
    Reason.SYSTEM_CHANGED: ReasonText(
        Rung.REUSABLE,
        "System prompt changed",
        "The system prompt was edited, or has a message more or less than before.",
        "If it was edited: roll it out at once, two variants need two warm caches. If it is another one with each "
        "request (documents, memory, a bio): move that behind what repeats.",
        _A,
        subject="The change of the system prompt",
    ),
    Reason.LANGUAGE_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Instructions in another language",
        "The application's instructions come in another language than before, in front of text that repeats.",
        "Keep one language per conversation, and put what all languages share in front. Each language is a prompt of "
        "its own: give it a scope (x-cache-scope, or a key's scope).",
        _A,
        subject="The change of language",
    ),
    Reason.HISTORY_TRIMMED: ReasonText(
        Rung.REUSABLE,
        "History trimmed",
        "Messages were cut from the front of the conversation, so that everything behind them moved.",
        "Trim rarely and in large steps, not a message with every turn.",
        _A,
        (RuleName.HISTORY_TRIM,),
        subject="The trimming of the history",
        by_rule="Or send all of it and set canon: {rules: {history-trim: apply}}.",
        when_on="Or send all of it: history-trim is on, and trims in large steps.",
    ),
    Reason.HISTORY_EDITED: ReasonText(
        Rung.REUSABLE,
        "History edited",
        "An earlier message of the conversation was changed, added or taken out.",
        "Only append to a conversation; put corrections and retrieved documents into the newest message.",
        _A,
        subject="The edit of the history",
    ),
    Reason.REPLY_RERENDERED: ReasonText(
        Rung.REUSABLE,
        "Reply sent back differently",
        "The model's answer comes back in the history in another form than it was generated in: reasoning dropped, "
        "tool arguments dumped again, text stripped.",
        "Send answers back exactly as they came; where the template drops reasoning, this is what it costs.",
        _A,
        (RuleName.JSON_KEYS,),
        subject="The reply that comes back differently",
        by_rule="Order of keys only: canon: {rules: {json-keys: apply}}.",
    ),
    Reason.CONTEXT_LOST: ReasonText(
        Rung.REUSABLE,
        "Moved context lost",
        "The gateway had moved values behind an earlier message of the conversation, and no longer knows them, so that "
        "the conversation is computed again from there.",
        "Raise canon.memory_mib or canon.memory_ttl_seconds; set state to the URL of a Redis, where the values survive "
        "restarts and every gateway finds them.",
        _G,
        subject="The lost context",
    ),
    Reason.ARGUMENTS_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Template arguments changed",
        "An argument of the chat template, such as chat_template_kwargs, is another one than before.",
        "Send the same chat_template_kwargs, reasoning_effort and tool_choice with every request of a conversation.",
        _A,
        subject="The change of arguments",
    ),
    Reason.TEMPLATE_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Chat template changed",
        "The chat template or its version label is another one than before.",
        "Once per roll-out: change the template together with the model, keep template_version where nothing else "
        "changes, and declare the most used prefixes under warm.file.",
        _G,
        subject="The change of the chat template",
    ),
    Reason.TEMPLATE_DROPPED: ReasonText(
        Rung.REUSABLE,
        "Rewritten by the chat template",
        "The messages are the same, and the chat template writes them in another way once others follow: it leaves out "
        "a think block or reasoning, marks earlier turns, or moves tools behind the newest message.",
        "Serve a chat template that keeps the history as it was first written (think block in it, tools in front), or "
        "set its arguments for that (chat_template_kwargs).",
        _G,
        subject="The chat template's rewriting of the history",
    ),
    Reason.PROMPT_VERSION_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Other version of the prompt",
        "The application's prompt has another version than before (x-prompt-version, or the version in template).",
        "Expected after a roll-out. Clients that name no version change together; two versions in use need two warm "
        "caches.",
        _G,
        subject="The change of the prompt's version",
    ),
    Reason.TOKENIZER_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Tokenizer changed",
        "The model's tokenizer is another one than before, so equal text has other tokens.",
        "Once per roll-out: change the model and its tokenizer setting together, and declare the most used prefixes "
        "under warm.file.",
        _G,
    ),
    Reason.MODEL_UPDATED: ReasonText(
        Rung.REUSABLE,
        "Model updated",
        "The engine serves other weights, another release or another context limit under the same name than when it "
        "computed these tokens.",
        "Once per update: roll several changes out together, and declare the most used prefixes under warm.file.",
        _G,
    ),
    Reason.MODEL_CHANGED: ReasonText(
        Rung.REUSABLE,
        "Other model",
        "The conversation went on with another model than the one that computed these tokens; no cache carries over.",
        "Choose the model once per conversation: a router or a fallback should keep it for the turns that follow.",
        _A,
    ),
    Reason.UNCLASSIFIED: ReasonText(
        Rung.REUSABLE,
        "Not classified",
        "The prompt differs from its reference in a way that none of the other reasons describes, or the request was "
        "left out because explaining was behind, or had used its share of the CPU time.",
        "See the masked difference of such a request under GET /admin/api/requests; if skipped, see "
        "gateway_explain_skipped_total.",
        _N,
        subject="The difference",
    ),
    Reason.NEW_CONTENT: ReasonText(
        Rung.PROMPT,
        "New content",
        "Tokens that no earlier request had, such as the newest message or a new document; and what the gateway moves "
        "behind the newest message.",
        "Nothing: this is the work that has to be done.",
        _N,
    ),
    Reason.FIRST_SEEN: ReasonText(
        Rung.PROMPT,
        "Never seen",
        "Nothing comparable was sent before: a new application, a new prompt, or the first request after the gateway "
        "started.",
        "Nothing; declared prefixes (warm.file) make even the first request warm.",
        _N,
    ),
}


AVOIDABLE = frozenset(reason for reason, text in REASONS.items() if text.remedy is not Remedy.NONE)
"""Reasons that can be fixed."""

QUESTION_FIRST = "question_first"
"""Detail of ``USER_DATA``: a question in front of documents that were sent before."""


@dataclass(frozen=True, slots=True)
class RungText:
    """What is said about the tokens between a rung and the one below.

    Attributes:
        title: A few words, for a chart's axis.
        meaning: What they have in common, in one sentence.
    """

    title: str
    meaning: str


RUNGS: Mapping[Rung, RungText] = {
    Rung.CONFIRMED: RungText("Served from cache", "Not computed again: what all of this is for."),
    Rung.CHOSEN: RungText("Not where expected", "The chosen replica should have held them, and did not."),
    Rung.ANYWHERE: RungText("On another replica", "Another replica held them, and the request did not go there."),
    Rung.SEEN_HERE: RungText("No longer cached", "They were computed before, and no replica holds them any more."),
    Rung.SEEN: RungText(
        "Kept apart", "They were computed before, in a prefix space that shares no cache with this request."
    ),
    Rung.REFERENCE: RungText("Block rounding", "Equal to an earlier prompt, but not enough to fill a block."),
    Rung.REUSABLE: RungText("Prompt changed", "They stand in an earlier prompt, too, behind something that changed."),
    Rung.PROMPT: RungText("New", "They were never sent before."),
}
