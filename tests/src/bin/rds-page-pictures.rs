//! The pictures of the admin page in docs/admin-page.md: two daemons, programs that load both, and a browser that looks.
//!
//! `cargo run --release -p rds-tests --bin rds-page-pictures -- DIRECTORY [SECONDS]`: the load runs for so long (150) before the pictures are
//! taken, so that the charts show something.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rds_client::Node;
use rds_tests::address;
use rds_tests::browser::Browser;
use rds_tests::daemon::Plan;
use rds_tests::ledger::process::Scratch;
use rds_tests::program::rds_stress;

const NODE: u16 = 17415;
const ADMIN: u16 = 9385;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next().map(PathBuf::from) else {
        eprintln!("say in which directory the pictures belong");
        return ExitCode::from(2);
    };
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(150);
    let scratch = Scratch::new("page-pictures");
    let mut browser = match Browser::start(&scratch) {
        Ok(browser) => browser,
        Err(why) => {
            eprintln!("no pictures: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut plans = [1, 2, 3].map(|host| {
        let at = address(70, host);
        let plan = Plan::new(&scratch, at).with("listen-port", NODE).with("dial-port", NODE).with("lanes", 2);
        plan.with("admin", format!("{at}:{ADMIN}"))
    });
    let mut daemons: Vec<_> = plans.iter_mut().map(Plan::start).collect();
    let idle = ["orders", "billing"].map(|name| {
        let node = Node::attach_builder(plans[0].socket()).program(name).open().expect("it attaches");
        let socket = node.bind(if name == "orders" { 7000 } else { 7001 }).expect("a free port");
        (node, socket)
    });
    let mut load = Vec::new();
    for (peer, port, options) in [
        (1, 4000, &["-t", "2", "-d", "4", "-q", "4096"][..]),
        (2, 4100, &["-t", "1", "-d", "1", "-q", "512"]),
        (1, 4200, &["-t", "1", "-d", "2", "-q", "256K", "--zcopy-send", "on"]),
    ] {
        let side = |plan: &Plan, more: &[&str]| -> Child {
            let mut command = Command::new(rds_stress());
            command.args(["-r", &plan.address().to_string(), "-p", &port.to_string(), "--attach"]);
            command.arg(plan.socket()).args(more).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("it starts")
        };
        load.push(side(&plans[peer], &[]));
        std::thread::sleep(Duration::from_secs(1));
        let passive = plans[peer].address().to_string();
        let time = (seconds + 600).to_string();
        load.push(side(&plans[0], &[&["-s", &passive, "-T", &time], options].concat()));
    }
    browser.prefer("light");
    browser.open(&format!("http://{}:{ADMIN}/", plans[0].address()), 1280);
    std::thread::sleep(Duration::from_secs(seconds));
    let mut take = |name: &str, scheme: &str, (width, height), script: &str| {
        browser.prefer(scheme);
        browser.window(width, height);
        let _ = browser.eval(script);
        // Transitions end, and the layout settles.
        std::thread::sleep(Duration::from_secs(2));
        let path = directory.join(name);
        std::fs::write(&path, browser.picture()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("{}", path.display());
    };
    let open = "document.querySelector('#peers button.open').click(); scrollTo(0, 0)";
    take("page-light.png", "light", (1280, 1040), open);
    take("page-dark.png", "dark", (1280, 1040), "scrollTo(0, 0)");
    take("page-narrow.png", "light", (360, 900), "scrollTo(0, 0)");
    daemons.pop().expect("three were started").kill();
    std::thread::sleep(Duration::from_secs(8));
    take("page-trouble.png", "light", (1280, 560), "scrollTo(0, 0)");
    drop(idle);
    for mut child in load {
        // Some have ended by themselves, with their peer.
        let _ = child.kill();
        let _ = child.wait();
    }
    ExitCode::SUCCESS
}
