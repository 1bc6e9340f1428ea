//! The admin page, as a browser shows it: what it says is what `/status` says, whoever it speaks of, and everybody can use it.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use rds_client::{Node, Received, Socket};
use rds_tests::address;
use rds_tests::browser::Browser;
use rds_tests::daemon::{Daemon, Plan};
use rds_tests::ledger::process::{PATIENCE, Scratch};
use rds_tests::relay::Relay;
use rds_tests::skip::or_skip;
use serde_json::Value;

/// Where the nodes of these tests listen.
const NODE: u16 = 17414;
/// Where the daemons' pages are.
const ADMIN: u16 = 9385;
/// A name that would run a script, if it were read as HTML, and turn the line around, if it were shown as it is.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'></td>&\"\u{202e}gnp";

/// Two daemons with a page each, a program at either that has sent to the other, and a browser.
struct Stage {
    browser: Browser,
    plans: [Plan; 2],
    daemons: Vec<Daemon>,
    /// Their programs, with a socket each, in the order of the daemons.
    programs: Vec<(Node, Socket)>,
    relay: Relay,
    // Last: its folder goes when nobody uses it any more.
    _scratch: Scratch,
}

impl Stage {
    /// `None` after it was said that there is no browser.
    fn set(net: u8) -> Option<Self> {
        let scratch = Scratch::new(&format!("page-{net}"));
        let browser = or_skip(Browser::start(&scratch))?;
        let mut plans = [1, 2].map(|host| {
            let at: Ipv4Addr = address(net, host);
            let plan = Plan::new(&scratch, at).with("listen-port", NODE).with("dial-port", NODE);
            plan.with("admin", format!("{at}:{ADMIN}"))
        });
        let daemons: Vec<Daemon> = plans.iter_mut().map(Plan::start).collect();
        let names = [HOSTILE, "orders"];
        let programs: Vec<_> = plans.iter().zip(names).map(|(plan, name)| program(plan, name)).collect();
        for (from, to) in [(0, 1), (1, 0)] {
            let [from, to]: [&Socket; 2] = [&programs[from].1, &programs[to].1];
            for _ in 0..100 {
                from.send_to(&[7; 5000], to.local_addr()).expect("it is sent");
                let Received::Message { len: 5000, .. } = to.recv_from(&mut [0; 5000]).expect("it comes")
                else {
                    panic!()
                };
            }
        }
        let relay = Relay::to((plans[0].address(), ADMIN).into());
        let since = Instant::now();
        while relay.get("/healthz").is_err() {
            assert!(since.elapsed() < PATIENCE, "there is no page\n{}", daemons[0].log());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Some(Self { browser, plans, daemons, programs, relay, _scratch: scratch })
    }

    /// Opens the page of the first daemon, and waits until it shows something.
    fn open(&mut self, width: u32) {
        let url = self.relay.url();
        self.browser.open(&url, width);
        self.browser.until("!!document.querySelector('#peers tbody tr')");
    }

    /// Sends something to the other side, wherever that is.
    fn sends(&self) {
        let [(_, from), (_, to)] = &self.programs[..] else { unreachable!("there are two programs") };
        from.send_to(b"are you there?", to.local_addr()).expect("it is accepted");
    }

    /// Has the page stand still.
    fn pause(&mut self) {
        self.browser.key("p");
        assert_eq!(
            self.browser.eval("document.getElementById('pause').getAttribute('aria-pressed')"),
            "true"
        );
    }

    /// Nothing was fetched from elsewhere, no script failed and no policy was broken.
    fn was_good(&self) {
        let ours = |url: &str| url == "about:blank" || url.starts_with(&self.relay.url());
        let elsewhere: Vec<_> = self.browser.fetched().iter().filter(|url| !ours(url)).collect();
        assert!(elsewhere.is_empty(), "the page needs nothing of others: {elsewhere:?}");
        assert!(self.browser.complaints().is_empty(), "{:#?}", self.browser.complaints());
    }
}

/// A program with one socket at the daemon of `plan`.
fn program(plan: &Plan, name: &str) -> (Node, Socket) {
    let node = Node::attach_builder(plan.socket()).program(name).open().expect("it attaches");
    let socket = node.bind(4000).expect("nobody else has the port");
    (node, socket)
}

/// What a status has at a dotted path, of which the last name may have dots of its own.
fn at<'a>(status: &'a Value, path: &str) -> Option<&'a Value> {
    let within = |name: &str| match status {
        Value::Object(map) => map.get(name),
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        _ => None,
    };
    within(path).or_else(|| path.split_once('.').and_then(|(name, rest)| at(within(name)?, rest)))
}

/// Whether an element's `data-value` is this value: text as it is, all else as JSON. Whole numbers to the last digit; of others JavaScript
/// may write fewer zeros.
fn same(shown: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => text == shown,
        Value::Number(number) if number.is_f64() => number.as_f64() == shown.parse().ok(),
        Value::Number(number) => number.to_string() == shown,
        Value::Null => shown == "null",
        Value::Bool(value) => shown == if *value { "true" } else { "false" },
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// The path with `*` for each index.
fn shape(path: &str) -> String {
    let steps = path.split('.').map(|step| if step.parse::<usize>().is_ok() { "*" } else { step });
    steps.collect::<Vec<_>>().join(".")
}

/// Must be somewhere on the page, once all is open.
const SHOWN: [&str; 40] = [
    "version",
    "pid",
    "state",
    "socket",
    "started_ms",
    "uptime_ms",
    "at_ms",
    "suppressed_log_lines",
    "config.file",
    "config.reloads",
    "config.last_error",
    "nodes.*.address",
    "nodes.*.generation",
    "nodes.*.receive_queued",
    "nodes.*.receive_budget",
    "nodes.*.counters.send_queued",
    "nodes.*.counters.protocol_errors",
    "nodes.*.zero_copy.pinned_bytes",
    "nodes.*.zero_copy.pin_limit",
    "nodes.*.zero_copy.memlock",
    "nodes.*.peers.*.address",
    "nodes.*.peers.*.kind",
    "nodes.*.peers.*.delivery",
    "nodes.*.peers.*.lanes",
    "nodes.*.peers.*.congested_ports",
    "nodes.*.peers.*.connections.*.lane",
    "nodes.*.peers.*.connections.*.state",
    "nodes.*.peers.*.connections.*.next_tx",
    "nodes.*.peers.*.connections.*.next_rx",
    "nodes.*.peers.*.connections.*.zero_copy.send.decision.reason",
    "nodes.*.peers.*.connections.*.zero_copy.send.decision.zero_copy",
    "nodes.*.sockets.*.bound",
    "nodes.*.sockets.*.congested",
    "nodes.*.clients.*.program",
    "nodes.*.clients.*.pid",
    "nodes.*.clients.*.pinned_bytes",
    "nodes.*.clients.*.sockets.*.bound",
    "nodes.*.ports.*.sharing",
    "nodes.*.ports.*.members",
    "nodes.*.clients.*.held.records",
];

#[test]
fn every_value_on_the_page_is_the_one_that_status_has() {
    let Some(mut stage) = Stage::set(61) else { return };
    stage.open(1440);
    let browser = &mut stage.browser;
    let _ = browser.eval("document.getElementById('zeros').click()");
    browser.key("e");
    let _ = browser.eval("document.querySelectorAll('#clients button.open').forEach((one) => one.click())");
    // Not what the page showed first, so that it shows values that it has changed since.
    browser.until("document.querySelectorAll('#charts .line')[0].getAttribute('d').includes('L')");
    stage.pause();
    let all = "[...document.querySelectorAll('[data-path]')].map((one) => [one.dataset.path, one.dataset.value, one.textContent])";
    let all: Vec<[String; 3]> = serde_json::from_value(stage.browser.eval(all)).expect("three texts each");
    let when = all.iter().find(|one| one[0] == "at_ms").expect("the page says of when it is");
    let status = stage.relay.status(when[1].parse().expect("milliseconds")).expect("it was handed on");
    let mut wrong = Vec::new();
    for [path, shown, text] in &all {
        let found = at(&status, path);
        if !found.is_some_and(|found| same(shown, found)) {
            wrong.push(format!("{path}: the page has {shown:?} ({text:?}), the status {found:?}"));
        }
        if text.is_empty() {
            wrong.push(format!("{path}: nothing is to be seen of {shown:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let shapes: BTreeSet<String> = all.iter().map(|one| shape(&one[0])).collect();
    let missing: Vec<_> = SHOWN.iter().filter(|path| !shapes.contains(**path)).collect();
    assert!(missing.is_empty(), "not on the page: {missing:#?}");
    for counter in status["nodes"][0]["counters"].as_object().expect("counters by name").keys() {
        assert!(shapes.contains(&format!("nodes.*.counters.{counter}")), "{counter} is not on the page");
    }
    // What is shown is what the daemon says by itself, too: at rest these stay.
    let now: Value = serde_json::from_slice(&stage.relay.get("/status").expect("it answers")).expect("JSON");
    for path in
        ["version", "pid", "started_ms", "nodes.0.peers.0.connections.0.next_tx", "nodes.0.clients.0.program"]
    {
        assert_eq!(at(&now, path), at(&status, path), "{path}");
    }
    assert_eq!(stage.browser.eval("document.getElementById('headline').textContent"), "All is well");
    stage.was_good();
}

#[test]
fn the_name_of_a_hostile_program_is_text_on_one_line() {
    let Some(mut stage) = Stage::set(62) else { return };
    stage.open(1440);
    let name = "document.querySelector('#clients .name')";
    let browser = &mut stage.browser;
    assert_eq!(browser.eval(&format!("{name}.dataset.value")), HOSTILE);
    let shown = browser.eval(&format!("{name}.textContent"));
    assert_eq!(shown, HOSTILE.replace('\u{202e}', "\\u{202e}"), "it turns nothing round");
    assert_eq!(
        browser.eval("document.querySelectorAll('main img, main script').length"),
        0,
        "it is no element"
    );
    assert_eq!(browser.eval("document.title.includes('owned')"), false, "it does nothing");
    // In the filter, the table of ports and labels as well.
    let label = browser.eval("document.querySelector('#clients button.open').getAttribute('aria-label')");
    assert!(label.as_str().is_some_and(|label| label.contains("<img src=x")), "{label}");
    stage.was_good();
}

#[test]
fn all_can_be_done_with_the_keyboard_and_is_seen_while_it_is() {
    let Some(mut stage) = Stage::set(63) else { return };
    stage.open(1440);
    stage.pause();
    let browser = &mut stage.browser;
    let within = |browser: &mut Browser, what: &str| browser.eval(&format!("document.activeElement.{what}"));
    // Every control is reached by Tab, the way to the verdict first, and shows that it has the focus.
    let reach = "[...document.querySelectorAll('a[href], button, input, [tabindex=\"0\"]')].filter((one) => one.checkVisibility())";
    let controls = browser.eval(&format!("{reach}.length")).as_u64().expect("a number");
    assert!(controls > 60, "{controls} controls");
    browser.key("Tab");
    assert_eq!(within(browser, "className"), "skip");
    let mut unseen = Vec::new();
    for _ in 0..controls {
        let seen = "((one) => { one.seen = true; const look = getComputedStyle(one); return look.outlineStyle !== 'none' && look.outlineWidth !== '0px'; })(document.activeElement)";
        if browser.eval(seen) != true {
            unseen.push(within(browser, "outerHTML"));
        }
        browser.key("Tab");
    }
    assert!(unseen.is_empty(), "the focus is not seen on {unseen:#?}");
    let missed = browser.eval(&format!("{reach}.filter((one) => !one.seen).map((one) => one.outerHTML)"));
    assert_eq!(missed, Value::Array(Vec::new()), "not reached by Tab");
    // The filter.
    browser.key("/");
    assert_eq!(within(browser, "id"), "filter");
    for key in "send_que".chars() {
        browser.key(&key.to_string());
    }
    let rows = "[...document.querySelectorAll('#counters tbody th')].map((one) => one.textContent)";
    let filtered = browser.eval(rows);
    let filtered = filtered.as_array().expect("a list");
    assert!(!filtered.is_empty(), "some counter is named so");
    assert!(
        filtered.iter().all(|name| name.as_str().is_some_and(|name| name.starts_with("send_que"))),
        "{filtered:?}"
    );
    assert_eq!(browser.eval("document.querySelectorAll('#clients tbody tr').length"), 0);
    browser.key("Escape");
    assert_eq!(browser.eval("document.querySelectorAll('#clients tbody tr').length"), 1);
    // Sorting.
    let _ = browser.eval("document.querySelector('#counters thead button').focus()");
    let sorted = "document.querySelector('#counters thead th').getAttribute('aria-sort')";
    for way in ["ascending", "descending"] {
        browser.key("Enter");
        assert_eq!(browser.eval(sorted), way);
        let names = browser.eval(rows);
        let mut names: Vec<_> = names.as_array().expect("a list").iter().map(Value::to_string).collect();
        assert!(names.len() > 5, "{names:?}");
        if way == "descending" {
            names.reverse();
        }
        assert!(names.is_sorted(), "{names:?}");
    }
    // Details: the focus stays on the button.
    let _ = browser.eval("document.querySelector('#peers button.open').focus()");
    browser.key("Enter");
    assert_eq!(within(browser, "ariaExpanded"), "true");
    assert_eq!(
        browser.eval("!!document.getElementById(document.activeElement.getAttribute('aria-controls'))"),
        true
    );
    browser.key("Enter");
    assert_eq!(within(browser, "ariaExpanded"), "false");
    // Sections, the theme and the list of keys.
    browser.key("2");
    assert_eq!(within(browser, "textContent"), "Programs");
    for theme in ["light", "dark", "auto"] {
        browser.key("t");
        assert_eq!(browser.eval("document.documentElement.dataset.theme ?? 'auto'"), theme);
    }
    browser.key("?");
    assert_eq!(browser.eval("document.getElementById('help').open"), true);
    browser.key("Escape");
    assert_eq!(browser.eval("document.getElementById('help').open"), false);
    // A chart says its values one by one.
    let _ = browser.eval("document.querySelector('.plot').focus()");
    browser.key("ArrowLeft");
    let said = browser.eval("document.querySelector('figure .unseen').textContent");
    assert!(said.as_str().is_some_and(|said| said.contains("out") && said.contains("in")), "{said}");
    stage.was_good();
}

/// Texts whose contrast with what is behind them is less than WCAG's level AA asks for.
const FAINT: &str = r#"(() => {
  const rgb = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((n) => (n / 255 <= 0.03928 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  let looked = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !one.checkVisibility() || one.closest("noscript, script")) continue;
    looked += 1;
    const look = getComputedStyle(one);
    const size = parseFloat(look.fontSize);
    const large = size >= 24 || (size >= 18.66 && look.fontWeight >= 700);
    const [a, b] = [light(rgb(look.color)), light(ground(one))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) faint.add(`${ratio.toFixed(2)}: ${one.className} ${one.textContent.slice(0, 40)}`);
  }
  return { looked, faint: [...faint] };
})()"#;

#[test]
fn text_has_contrast_controls_have_names_and_nothing_is_cut_off_in_light_and_dark_at_every_width() {
    let Some(mut stage) = Stage::set(64) else { return };
    stage.open(1440);
    // The other side goes, so that there is something in every colour.
    stage.daemons.pop().expect("two were started").kill();
    stage.sends();
    stage.browser.until("document.getElementById('verdict').classList.contains('bad')");
    stage.browser.key("e");
    stage.pause();
    let browser = &mut stage.browser;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let looks = browser.eval("getComputedStyle(document.documentElement).colorScheme");
        assert_eq!(looks, scheme, "the page has the system's colours");
        let found = browser.eval(FAINT);
        assert!(found["looked"].as_u64() > Some(100), "{found}");
        assert_eq!(found["faint"], Value::Array(Vec::new()), "{scheme}");
    }
    for width in [360, 768, 1024, 1440, 1920] {
        browser.window(width, 1000);
        let over =
            browser.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
        assert_eq!(over, 0, "at {width} pixels the page is wider than its window");
    }
    browser.window(360, 1000);
    let over = "[...document.querySelectorAll('main *')].filter((one) => one.checkVisibility() && !one.closest('.bar ul, .unseen') && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 120))";
    assert_eq!(browser.eval(over), Value::Array(Vec::new()), "cut off at 360 pixels");
    browser.window(1440, 1000);
    // What a screen reader is told.
    let tree = browser.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let mut roles = BTreeSet::new();
    for node in tree["nodes"].as_array().expect("a tree").iter().filter(|node| node["ignored"] != true) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if [
            "button",
            "link",
            "searchbox",
            "checkbox",
            "columnheader",
            "rowheader",
            "table",
            "img",
            "image",
            "region",
            "navigation",
        ]
        .contains(&role)
        {
            roles.insert(role.to_owned());
            let name = node["name"]["value"].as_str().unwrap_or_default();
            assert!(!name.trim().is_empty(), "a {role} without a name: {node}");
        }
    }
    for role in
        ["button", "link", "searchbox", "checkbox", "columnheader", "rowheader", "table", "navigation"]
    {
        assert!(roles.contains(role), "a screen reader finds no {role} but {roles:?}");
    }
    stage.was_good();
}

#[test]
fn a_peer_that_is_gone_is_named_with_what_to_do_and_all_is_well_again_when_it_is_back() {
    let Some(mut stage) = Stage::set(65) else { return };
    stage.open(1440);
    stage.browser.until("document.getElementById('headline').textContent === 'All is well'");
    stage.daemons.pop().expect("two were started").kill();
    // Nothing waits for it: that may be as it should be.
    stage.browser.until("document.getElementById('headline').textContent === 'One thing needs attention'");
    stage.sends();
    stage.browser.until("document.getElementById('headline').textContent === 'One thing is wrong'");
    let peer = stage.plans[1].address().to_string();
    let what = stage.browser.eval("document.querySelector('#findings .bad .what').textContent");
    assert!(what.as_str().is_some_and(|what| what.contains(&peer)), "{what}");
    let todo = stage.browser.eval("document.querySelector('#findings .bad .todo').textContent");
    assert!(todo.as_str().is_some_and(|todo| todo.len() > 20), "{todo}");
    stage.daemons.push(stage.plans[1].start());
    stage.browser.until("document.querySelector('#findings .bad') === null && document.querySelector('#peers .pill.ok') !== null");
    stage.was_good();
}

#[test]
fn a_daemon_that_is_gone_is_said_to_be_and_asked_until_it_is_back() {
    let Some(mut stage) = Stage::set(66) else { return };
    stage.open(1440);
    let before = stage.browser.eval("document.querySelector('[data-path=pid]').dataset.value");
    stage.daemons.remove(0).kill();
    stage.browser.until("document.getElementById('headline').textContent === 'The daemon does not answer'");
    assert_eq!(stage.browser.eval("document.body.classList.contains('stale')"), true);
    let told = stage.browser.eval("document.getElementById('summary').textContent");
    assert!(told.as_str().is_some_and(|told| told.starts_with("Asking again in")), "{told}");
    stage.daemons.insert(0, stage.plans[0].start());
    stage.browser.until("!document.body.classList.contains('stale')");
    stage.browser.until("document.getElementById('headline').textContent !== 'The daemon does not answer'");
    let after = stage.browser.eval("document.querySelector('[data-path=pid]').dataset.value");
    assert_ne!(before, after, "it shows the new one");
    // One program a daemon, which has attached again by itself.
    assert_eq!(stage.programs.len(), 2);
    stage.browser.until("document.querySelectorAll('#clients tbody tr').length === 1");
}

#[test]
fn rates_come_from_numbers_of_any_size_and_not_from_a_daemon_that_started_anew() {
    let Some(mut stage) = Stage::set(67) else { return };
    stage.open(1440);
    let rates = r#"(async () => {
      const { History, parse } = await import("/data.js");
      const status = (instance, at, tx, rx, out) => parse(`{"instance": ${instance}, "started_ms": 1, "at_ms": ${at}, "nodes": [{
        "address": "a", "counters": {"send_queued": ${out}}, "sockets": [],
        "peers": [{"address": "b", "connections": [{"lane": 0, "next_tx": ${tx}, "next_rx": ${rx}}]}]}]}`);
      const history = new History();
      const seen = [];
      for (const one of [
        [18446744073709551615n, 1000, 1883346142156030053n, 9007199254740990n, 10],
        [18446744073709551615n, 1000, 1883346142156030053n, 9007199254740990n, 10],
        [18446744073709551615n, 3000, 1883346142156030063n, 9007199254740996n, 50],
        [18446744073709551614n, 4000, 1883346142156039999n, 9007199254749999n, 90],
        [18446744073709551614n, 5000, 1883346142156040000n, 9007199254749999n, 70],
      ]) {
        const { anew, same } = history.push(status(...one));
        const rate = history.rate("a", "b");
        seen.push([anew, same, rate?.out ?? null, rate?.in ?? null, history.samples.at(-1).out ?? null]);
      }
      return seen;
    })()"#;
    let seen = stage.browser.eval(rates);
    let wanted = serde_json::json!([
        [false, false, null, null, null],
        [false, true, null, null, null],
        [false, false, 5, 3, 20],
        [true, false, null, null, null],
        [false, false, 1, 0, 0],
    ]);
    assert_eq!(seen, wanted);
    stage.was_good();
}
