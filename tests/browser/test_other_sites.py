"""A page of another site in the operator's browser changes nothing, reads nothing, and cannot frame the dashboard."""

import httpx
import pytest

from browser.stage import OPERATE, Stage

pytestmark = pytest.mark.slow

TRIES = """
async ([admin, token]) => {
  const answers = {};
  const attempt = async (name, path, options) => {
    try {
      const answer = await fetch(admin + path, options);
      answers[name] = answer.type === "opaque" ? "opaque" : `read ${answer.status}: ${await answer.text()}`;
    } catch (error) {
      answers[name] = "refused";
    }
  };
  const everything = JSON.stringify({ all: true });
  const bearer = { authorization: `Bearer ${token}` };
  await attempt("get", "/admin/api/summary", {});
  await attempt("get with a token", "/admin/api/summary", { headers: bearer });
  await attempt("get blindly", "/admin/api/summary", { mode: "no-cors", credentials: "include" });
  await attempt("post", "/admin/api/spaces/reset", { method: "POST", body: everything });
  await attempt("post as JSON", "/admin/api/spaces/reset", {
    method: "POST",
    body: everything,
    headers: { "content-type": "application/json", ...bearer },
  });
  await attempt("post blindly", "/admin/api/spaces/reset", {
    method: "POST",
    body: everything,
    mode: "no-cors",
    credentials: "include",
  });
  return answers;
}
"""


def alive(stage: Stage) -> list[str]:
    return sorted(space["id"] for space in stage.asked("spaces", state="alive")["spaces"])


def test_another_site_can_neither_read_nor_change_anything_while_an_operator_is_signed_in(visit, known, other_site):
    visitor = visit(known.admin)
    visitor.expects("401", "403", "CORS", "net::ERR", "405")
    visitor.open()
    visitor.sign_in(OPERATE)
    before = alive(known)
    assert before
    other = visitor.context.new_page()
    other.goto(other_site)
    reported = other.evaluate(TRIES, [known.admin, OPERATE])
    # A form needs no permission to be sent.
    with other.expect_navigation():
        other.evaluate(
            """([admin]) => {
              const form = document.createElement("form");
              form.method = "POST";
              form.enctype = "text/plain";
              form.action = `${admin}/admin/api/spaces/reset`;
              const field = document.createElement("input");
              field.name = '{"all": true, "x": "';
              field.value = '"}';
              form.append(field);
              document.body.append(form);
              form.submit();
            }""",
            [known.admin],
        )
    assert "unauthorized" in other.content()
    assert reported == {
        "get": "refused",
        "get with a token": "refused",
        # Blocked, though it would hold no more than the refusal.
        "get blindly": "refused",
        "post": "refused",
        "post as JSON": "refused",
        "post blindly": "refused",
    }
    assert alive(known) == before


def test_another_site_changes_nothing_where_no_token_is_asked_for(visit, demo, other_site):
    visitor = visit(demo.admin)
    visitor.expects("403", "CORS", "net::ERR", "405")
    spaces = f"{demo.admin}/admin/api/spaces?state=alive"
    before = {space["id"] for space in httpx.get(spaces, trust_env=False).json()["spaces"]}
    assert before
    other = visitor.page
    other.goto(other_site)
    reported = other.evaluate(TRIES, [demo.admin, "none"])
    assert set(reported.values()) == {"refused"}
    assert before <= {space["id"] for space in httpx.get(spaces, trust_env=False).json()["spaces"]}


def test_dashboard_cannot_be_framed(visit, known: Stage, other_site: str):
    visitor = visit(known.admin)
    visitor.expects("frame-ancestors", "net::ERR_BLOCKED", "Framing")
    page = visitor.page
    page.goto(other_site)
    page.evaluate(
        """(url) => new Promise((loaded) => {
          const frame = document.createElement("iframe");
          frame.onload = loaded;
          frame.src = url;
          document.body.append(frame);
        })""",
        f"{known.admin}/dashboard",
    )
    # The frame's load event can be there before the word of where it ended up.
    framed = page.frames[1]
    for _ in range(200):
        if framed.url:
            break
        page.wait_for_timeout(50)
    assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]
    assert not [url for url in visitor.asked if "/assets/" in url]
