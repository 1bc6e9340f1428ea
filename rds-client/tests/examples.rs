//! Every example runs, ends by itself, and finds right what it did.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rds_server::server::Server;
use rds_server::settings::Settings;

/// Far longer than an example takes, so that one that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where an example is. Builds all of them first, as the tests were built: only what was changed takes time.
fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "rds-client", "--examples"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the examples do not build");
        // This is target/debug/deps/examples-NUMBER.
        std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples")
    });
    folder.join(name)
}

/// Runs an example; it must say what it has done.
fn run(name: &str, arguments: &[&str], says: &str) {
    let mut command = Command::new(example(name));
    command.args(arguments).env_remove("RDS_ATTACH").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let since = Instant::now();
    // They say less than a pipe holds.
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{said}{errors}", output.status);
    assert!(said.contains(says), "{name}: {said}");
}

/// Runs an example at a daemon of its own.
fn run_attached(name: &str, host: u8, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(vec![[127, 80, 7, host].into()]);
    settings.socket = folder.path().join("rds.sock");
    settings.listen_port = 0;
    let path = settings.socket.clone();
    let daemon = Server::start(settings).unwrap();
    run(name, &["--attach", path.to_str().unwrap()], says);
    drop(daemon);
}

#[test]
fn request_and_reply() {
    run("request_reply", &[], "answer -> ANSWER");
}

#[test]
fn a_work_queue_over_a_balanced_port() {
    run_attached("work_queue", 1, "worker 2 did ");
}

#[test]
fn a_feed_over_a_fanned_out_port() {
    run_attached("fan_out", 2, "subscriber 2 saw 1000 updates");
}

#[test]
fn a_producer_that_does_not_copy() {
    run("zero_copy_producer", &[], "200 blocks of 262144 bytes arrived");
}

#[test]
fn tasks_of_a_runtime() {
    run("tokio_echo", &[], "1000 requests of 20 clients were answered");
}

#[test]
fn a_poll_loop_of_ones_own() {
    run("mio_loop", &[], "2000 messages were echoed by one thread");
}

#[test]
fn an_example_without_a_daemon_says_so() {
    let output =
        Command::new(example("work_queue")).args(["--attach", "/nowhere/rds.sock"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/rds.sock"), "{output:?}");
}
