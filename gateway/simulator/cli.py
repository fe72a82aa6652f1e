"""``prefix-gateway engine``: one simulated engine from the command line."""

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop

from gateway.core.engine_facts import EngineKind
from gateway.simulator.config import EngineConfig
from gateway.simulator.event_encoder import EventEncoding, EventHashes
from gateway.simulator.faults import Fault
from gateway.simulator.publisher import ListenError
from gateway.simulator.simulated_engine import SimulatedEngine, serve_engines

DESCRIPTION = "Run one simulated engine: vLLM's or SGLang's API, prefix cache, KV events and timing, without a model."
_HTTP_FAULTS = """\
    refuse              no connection: the port is closed
    connect_hang        connections are accepted and not read, as by a stopped process
    connect_reset       connections are accepted and reset
    hang                no answer
    slow=SECONDS        the answer comes that much later
    429 500 502 503 504 answered with that status
    die_before_first_byte  the connection is closed before the answer
    reset               the connection is reset before the answer
    garbage             the response is not HTTP
    die_after_head      the connection is closed behind the headers
    die_mid_stream=N    ... after N events of a stream, or in the middle of another body
    reset_mid_stream=N  the connection is reset there
    hang_mid_stream=N   nothing more comes from there on
    half_chunk=N        half a chunk is sent there, then the connection is closed
    garbage_mid_stream=N  bytes that are not an event, or not JSON, are sent there
    invalid_json        the JSON is cut short, or that of every event
    drip=SECONDS        16 bytes at a time, that far apart
    length_too_large    content-length is larger than the body
    length_too_small    content-length is smaller than the body
    no_done             a stream ends without [DONE]
    die_at_end          the connection is closed just before the answer's end
    hang_at_end         nothing more comes from there on
    usage_missing       the answer has no usage"""
_EVENT_FAULTS = f"""\
    events_drop         batches are not sent; they can be replayed
    events_drop_hard    batches are not sent and cannot be replayed
    events_delay=SECONDS  batches are sent that much later
    events_reorder      a batch is sent after the one that follows it
    events_duplicate    batches are sent twice
    events_stop         nothing is published or replayed while the engine continues
    events_close        the publishing socket is closed; the end of the fault opens it again
    {Fault.EVENTS_RESTART}      once: sequence 0, nothing to replay, an empty cache"""
EPILOG = f"""\
example:
  prefix-gateway engine --port 8100 --blocks 2000 --prefill-rate 4000 --decode-ms 20 \\
      --events 'tcp://*:5557' --replay 'tcp://*:5657'

faults (--fault, or POST /simulator/fault {{"spec": "..."}} while it runs; an empty spec ends them):
{_HTTP_FAULTS}
  options follow a colon: 500:times=3, hang:every=5, 500:path=/metrics
  of KV events (options times, every, rank: events_drop:times=1,rank=0):
{_EVENT_FAULTS}
  one of each kind can be in force: --fault "500:every=9 events_drop"

model update: POST /simulator/model {{"root": "...", "version": "...", "max_model_len": N, "restart": true}} while it
runs, each of them optional; with restart it acts as a new process with an empty cache.

what is cached: GET /simulator/cache lists every cached block of every rank by its tokens, salt and adapter.

events: with tcp://*:PORT they are published at the address of --host, so on loopback unless --host opens the engine
to other machines (vLLM and SGLang publish on every interface). An endpoint without a wildcard, tcp://127.0.0.1:5557,
makes the engine connect, so that no subscriber gets its events, as vLLM and SGLang do. Data-parallel rank r takes the
port + r for each of the two sockets.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser of its own."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_server(parser)
    _add_cache(parser)
    _add_speed(parser)
    _add_events(parser)
    parser.add_argument("--fault", default="", metavar="SPEC", help="faults to show from the start; see below")


def _add_server(parser: argparse.ArgumentParser) -> None:
    defaults = EngineConfig()
    parser.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--flavor",
        type=EngineKind,
        choices=list(EngineKind),
        default=defaults.flavor,
        metavar="vllm|sglang",
        help="which engine to behave as (default: %(default)s)",
    )
    parser.add_argument("--model", default=defaults.model, metavar="ID", help="model id (default: %(default)s)")
    parser.add_argument(
        "--root", default=defaults.root, metavar="PATH", help="where it says its model's files are (default: the id)"
    )
    parser.add_argument(
        "--engine-version",
        default=defaults.engine_version,
        metavar="VERSION",
        help="release it says it is (default: "
        + ", ".join(f"{kind} {EngineConfig(flavor=kind).flavor_version}" for kind in EngineKind)
        + ")",
    )
    parser.add_argument(
        "--lora", action="append", default=[], metavar="NAME", help="LoRA adapter served beside it; repeatable"
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        default=None,
        metavar="N",
        help="context limit in tokens (default: what the cache holds, at most 32768)",
    )
    parser.add_argument(
        "--no-prompt-tokens-details",
        dest="prompt_tokens_details",
        action="store_false",
        default=None,
        help="usage does not tell the cached tokens (as vLLM without --enable-prompt-tokens-details)",
    )
    parser.add_argument(
        "--enable-cache-report",
        dest="prompt_tokens_details",
        action="store_true",
        help="with --flavor sglang: usage tells the cached tokens",
    )
    parser.add_argument(
        "--no-render",
        dest="render",
        action="store_false",
        help="render endpoints answer 403 (as vLLM without --enable-scale-out)",
    )
    parser.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="Jinja file in place of the tokenizer's own template"
    )
    parser.add_argument(
        "--ignore-cache-salt",
        dest="ignores_salt",
        action="store_true",
        help="share blocks regardless of cache_salt, as releases that do not know it",
    )
    parser.add_argument(
        "--exclude-tools-when-tool-choice-none", action="store_true", help="as vLLM's flag; SGLang always does so"
    )
    parser.add_argument(
        "--refuse-cache-salt", dest="refuses_salt", action="store_true", help="answer 400 to requests with a cache_salt"
    )
    parser.add_argument(
        "--sse-keep-alive-interval",
        type=float,
        dest="keep_alive_seconds",
        metavar="SECONDS",
        help="a stream gets a comment whenever no token has come for so long, as with vLLM's option (default: never)",
    )
    parser.add_argument(
        "--clock",
        type=float,
        dest="clock_seconds",
        metavar="SECONDS",
        help="send Date headers of a clock that is so far ahead (default: none are sent)",
    )


def _add_cache(parser: argparse.ArgumentParser) -> None:
    defaults = EngineConfig()
    parser.add_argument(
        "--block-size",
        "--page-size",
        type=int,
        default=defaults.block_size,
        metavar="N",
        help="tokens per block (default: %(default)s; SGLang's own default is 1)",
    )
    parser.add_argument(
        "--blocks",
        type=int,
        default=defaults.blocks,
        metavar="N",
        help="blocks of each rank's cache (default: %(default)s)",
    )
    parser.add_argument(
        "--no-prefix-caching", dest="prefix_caching", action="store_false", help="no prefix is ever reused"
    )
    parser.add_argument(
        "--data-parallel-size",
        type=int,
        default=defaults.data_parallel_size,
        metavar="N",
        help="ranks behind the one port, each with a cache of its own (default: %(default)s)",
    )


def _add_speed(parser: argparse.ArgumentParser) -> None:
    defaults = EngineConfig()
    parser.add_argument(
        "--prefill-rate",
        type=float,
        default=defaults.prefill_rate,
        metavar="TOKENS_PER_S",
        help="prompt tokens computed per second and rank (default: %(default)s)",
    )
    parser.add_argument(
        "--decode-ms",
        type=float,
        default=defaults.decode_ms,
        metavar="MS",
        help="milliseconds per generated token (default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=defaults.slots,
        metavar="N",
        help="sequences at the same time per rank (default: %(default)s)",
    )


def _add_events(parser: argparse.ArgumentParser) -> None:
    defaults = EngineConfig()
    parser.add_argument("--events", default="", metavar="tcp://*:PORT", help="publish KV events there")
    parser.add_argument("--replay", default="", metavar="tcp://*:PORT", help="answer requests for past events there")
    parser.add_argument(
        "--replay-buffer",
        type=int,
        default=defaults.replay_buffer,
        metavar="N",
        help="past batches of events to keep (default: %(default)s)",
    )
    parser.add_argument("--event-topic", default="", metavar="TOPIC", help="topic of the messages (default: none)")
    parser.add_argument(
        "--event-encoding",
        type=EventEncoding,
        choices=list(EventEncoding),
        default=defaults.event_encoding,
        metavar="|".join(EventEncoding),
        help="maps, arrays as earlier releases sent them, or the first releases' short ones (default: %(default)s)",
    )
    parser.add_argument(
        "--event-hashes",
        type=EventHashes,
        choices=list(EventHashes),
        default=defaults.event_hashes,
        metavar="|".join(EventHashes),
        help="blocks named by 64-bit numbers or by 32 bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--window-blocks",
        type=int,
        default=0,
        metavar="BLOCKS",
        help="a hybrid model with such a sliding window (vLLM)",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C. Returns the exit code: 0, or 2 for options that cannot be used."""
    try:
        config = EngineConfig(
            host=args.host,
            port=args.port,
            flavor=args.flavor,
            model=args.model,
            root=args.root,
            engine_version=args.engine_version,
            adapters=tuple(args.lora),
            block_size=args.block_size,
            blocks=args.blocks,
            prefix_caching=args.prefix_caching,
            prefill_rate=args.prefill_rate,
            decode_ms=args.decode_ms,
            slots=args.slots,
            data_parallel_size=args.data_parallel_size,
            max_model_len=args.max_model_len,
            fault=args.fault,
            prompt_tokens_details=args.prompt_tokens_details,
            render=args.render,
            events=args.events,
            replay=args.replay,
            replay_buffer=args.replay_buffer,
            event_topic=args.event_topic,
            event_encoding=args.event_encoding,
            event_hashes=args.event_hashes,
            window_blocks=args.window_blocks,
            chat_template=args.chat_template,
            excludes_tools=args.exclude_tools_when_tool_choice_none,
            ignores_salt=args.ignores_salt,
            refuses_salt=args.refuses_salt,
            keep_alive_seconds=args.keep_alive_seconds,
            clock_seconds=args.clock_seconds,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_engines([config], _announce))
    except (ValueError, ListenError) as error:
        sys.stderr.write(f"prefix-gateway engine: {error}\n")
        return 2
    return 0


def _announce(engines: list[SimulatedEngine]) -> None:
    for engine in engines:
        events = f", events on {', '.join(engine.event_endpoints)}" if engine.event_endpoints else ""
        replay = f", replay on {', '.join(engine.replay_endpoints)}" if engine.replay_endpoints else ""
        sys.stdout.write(f"simulated engine {engine.config.model} on {engine.url}{events}{replay}\n")
    sys.stdout.flush()
