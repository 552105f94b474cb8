// The transcript browser. Texts were written by models: they enter the page as text nodes only.
(() => {
  "use strict";

  // Closed sections would be missing on paper.
  const opened = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) {
      part.open = true;
      opened.push(part);
    }
  });
  addEventListener("afterprint", () => {
    for (const part of opened.splice(0)) part.open = false;
  });

  const source = document.getElementById("episodes");
  if (!source) return;
  const { arms, episodes } = JSON.parse(source.textContent);
  const list = document.getElementById("list");
  const article = document.getElementById("transcript");
  const filters = document.querySelector(".filters");
  const field = (name) => document.getElementById("filter-" + name);

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  function swatch(arm) {
    const node = make("span", "swatch");
    const index = Object.hasOwn(arms, arm) ? arms[arm] : "other";
    node.style.setProperty("--arm", `var(--arm-${index})`);
    return node;
  }

  // Only training has steps.
  const stepped = new Set(episodes.map((episode) => episode.step)).size > 1;
  const place = (episode) => (stepped ? " step " + episode.step : " " + episode.task);

  const simulatorOf = (episode) => episode.simulator.label || "unnamed";

  function outcomeOf(episode) {
    if (episode.failure) return "failed: " + episode.failure.cause;
    return episode.outcome ? episode.outcome.state : "unknown";
  }

  function kindOf(episode) {
    if (episode.failure) return "failed";
    return episode.outcome && episode.outcome.success ? "success" : "miss";
  }

  const unique = (values) => [...new Set(values)];
  const byName = (a, b) => a.localeCompare(b);

  function fill(name, values, label = String) {
    const select = field(name);
    select.append(new Option("all", ""));
    for (const value of values) select.append(new Option(label(value), "=" + value));
    select.disabled = values.length < 2;
  }

  fill("arm", unique(episodes.map((episode) => episode.arm)));
  fill("phase", unique(episodes.map((episode) => episode.phase)).filter(Boolean));
  fill("step", unique(episodes.map((episode) => episode.step)).sort((a, b) => a - b));
  fill("simulator", unique(episodes.map(simulatorOf)).sort(byName));
  const outcome = field("outcome");
  fill("outcome", unique(episodes.map(outcomeOf)).sort(byName));
  const classes = [["success", "any success"], ["miss", "any without success"], ["failed", "any failure"]];
  const present = new Set(episodes.map(kindOf));
  classes
    .filter(([kind]) => present.has(kind))
    .forEach(([kind, label], position) => outcome.add(new Option(label, ":" + kind), position + 1));
  outcome.disabled = outcome.options.length < 3;

  const needle = (episode) => (episode.needle ??= JSON.stringify(episode.turns.map((turn) => [
    turn.text, turn.heard, turn.draw ? turn.draw.candidates.map(([text]) => text) : "",
  ])).toLowerCase());

  function matches(episode) {
    const same = (name, value) => field(name).value === "" || field(name).value === "=" + value;
    const wanted = outcome.value;
    const text = field("text").value.trim().toLowerCase();
    return same("arm", episode.arm) && same("phase", episode.phase) && same("step", episode.step)
      && same("simulator", simulatorOf(episode))
      && (wanted === "" || wanted === ":" + kindOf(episode) || wanted === "=" + outcomeOf(episode))
      && (text === "" || needle(episode).includes(JSON.stringify(text).slice(1, -1)));
  }

  let shown = [];
  let current = -1;

  function refresh() {
    const before = shown[current];
    shown = episodes.filter(matches);
    list.replaceChildren(...shown.map(item));
    document.getElementById("matches").textContent =
      shown.length === 1 ? "1 episode" : shown.length + " episodes";
    current = -1;
    if (shown.length) choose(Math.max(0, shown.indexOf(before)));
    else {
      list.removeAttribute("aria-activedescendant");
      article.replaceChildren(make("p", "note", "No episode matches these filters."));
    }
  }

  function item(episode, position) {
    const kind = kindOf(episode);
    const node = make("div", "item",
      make("span", "where", swatch(episode.arm), episode.arm, make("span", "quiet", place(episode))),
      make("span", "who", simulatorOf(episode)),
      make("span", "state " + kind, outcomeOf(episode)));
    node.id = "episode-" + position;
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", "false");
    node.addEventListener("click", () => choose(position));
    return node;
  }

  function choose(position) {
    const last = shown.length - 1;
    const next = Math.min(Math.max(position, 0), last);
    if (next === current) return;
    if (list.children[current]) list.children[current].setAttribute("aria-selected", "false");
    current = next;
    const node = list.children[current];
    node.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", node.id);
    // Scrolls the list only: the page must not jump.
    if (node.offsetTop < list.scrollTop) list.scrollTop = node.offsetTop;
    const below = node.offsetTop + node.offsetHeight - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
    article.replaceChildren(...transcript(shown[current]));
    article.scrollTop = 0;
  }

  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / 56));
    const moves = {
      ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page,
      Home: 0, End: shown.length - 1,
    };
    if (event.key === "Enter" && shown.length) article.focus();
    else if (event.key in moves && shown.length) choose(moves[event.key]);
    else return;
    event.preventDefault();
  });

  const percent = (value) => (value === null ? "—" : (100 * value).toFixed(value < 0.0995 ? 1 : 0) + " %");
  const decimal = (value) => (value === null ? "—" : String(Math.round(1000 * value) / 1000));

  function bars(title, rows, drawn, drawnWord) {
    const node = make("div", "draw", make("p", "draw-title", title));
    rows.forEach(([text, probability], position) => {
      const bar = make("span", "bar");
      bar.style.width = 100 * Math.min(Math.max(probability ?? 0, 0), 1) + "%";
      const row = make("div", position === drawn ? "candidate drawn" : "candidate",
        make("span", "probability", percent(probability)),
        make("span", "track", bar),
        make("span", "text", text || "(empty)",
          position === drawn ? make("b", "tag", drawnWord) : null));
      node.append(row);
    });
    return node;
  }

  function turnNode(turn) {
    const tags = [];
    if (turn.private) tags.push(make("b", "tag", "private"));
    if (turn.truncated) tags.push(make("b", "tag warn", "cut at the limit"));
    if (turn.draw && turn.draw.fallback) tags.push(make("b", "tag warn", "plain reply: no readable candidates"));
    const body = make("div", "body");
    if (turn.prompt) body.append(make("p", "cue", turn.prompt));
    if (turn.reasoning) {
      body.append(make("details", "", make("summary", "", "Reasoning, which nobody heard"), make("pre", "", turn.reasoning)));
    }
    body.append(make("p", "said", turn.text || "(empty)"));
    if (turn.heard !== undefined) body.append(make("p", "heard", make("i", "", "heard as "), turn.heard || "(nothing)"));
    if (turn.draw && turn.draw.candidates.length) {
      const size = turn.draw.candidates.length;
      body.append(bars(size === 1 ? "1 candidate" : size + " candidates", turn.draw.candidates, turn.draw.index, "drawn"));
    }
    if (turn.draw && turn.draw.raw) {
      const part = make("details", "", make("summary", "", "What the model wrote"));
      for (const raw of turn.draw.raw) part.append(make("pre", "", raw));
      body.append(part);
    }
    if (turn.options) {
      body.append(bars("Probability of each option", turn.options,
        turn.options.findIndex(([text]) => text === turn.text.trim()), "given"));
    }
    const classes = ["turn", turn.speaker === "agent" ? "agent" : "user"];
    if (turn.private) classes.push("private");
    return make("div", classes.join(" "), make("div", "speaker", turn.speaker, ...tags), body);
  }

  function speakerLine(role, info) {
    const parts = [info.label, info.family === info.label ? null : info.family, info.kind, info.adapter,
      info.persona ? "persona: " + info.persona : null];
    return make("div", "", make("dt", "", role), make("dd", "", parts.filter(Boolean).join(" · ") || "—"));
  }

  function closing(episode) {
    if (episode.failure) {
      const { cause, detail, attempts } = episode.failure;
      const tries = attempts === null ? "" : attempts === 1 ? " after 1 try" : ` after ${attempts} tries`;
      return make("div", "closing failed", make("b", "", `Failed (${cause})${tries}. No reward.`), make("p", "", detail));
    }
    if (!episode.outcome) return null;
    const { state, reward, success, truncated, metrics, note } = episode.outcome;
    const words = [success ? "success" : "no success", "reward " + decimal(reward)];
    if (truncated) words.push("ended by a limit");
    for (const [name, value] of Object.entries(metrics)) words.push(name.replaceAll("_", " ") + " " + decimal(value));
    return make("div", "closing " + kindOf(episode), make("b", "", state), make("p", "", words.join(" · ")),
      note ? make("p", "", "judged so: " + note) : null);
  }

  function transcript(episode) {
    const step = (label, by) => {
      const button = make("button", "", label);
      button.type = "button";
      button.disabled = !shown[current + by];
      button.addEventListener("click", () => {
        choose(current + by);
        const again = article.querySelectorAll(".head button")[by < 0 ? 0 : 1];
        if (!again.disabled) again.focus();
      });
      return button;
    };
    const where = [episode.phase, stepped ? "step " + episode.step : "", episode.task ? "task " + episode.task : "",
      episode.split ? episode.split + " split" : "", "sample " + episode.sample, "seed " + episode.seed];
    return [
      make("div", "head",
        make("h3", "", swatch(episode.arm), episode.arm),
        make("span", "buttons", step("Previous", -1), step("Next", 1))),
      make("p", "quiet", where.filter(Boolean).join(" · ")),
      make("dl", "speakers", speakerLine("agent", episode.agent), speakerLine("user", episode.simulator)),
      ...episode.turns.map(turnNode),
      closing(episode),
    ].filter(Boolean);
  }

  filters.addEventListener("input", refresh);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(refresh));
  document.getElementById("browser").hidden = false;
  refresh();
})();
