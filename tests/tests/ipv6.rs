//! Two nodes with IPv6 addresses. One host has but one IPv6 loopback address, so this runs in a network namespace of its own.

use std::process::{Command, Output};

use rds_tests::program::rds_stress;
use rds_tests::skip::{Unavailable, or_skip};

/// Runs a shell script in a new network namespace in which `::1`, `fd00::1` and `fd00::2` are local; `None` where no
/// namespace can be made, with the reason on standard error.
fn in_namespace(script: &str) -> Option<Output> {
    let prepare = "ip link set lo up && ip -6 addr add fd00::1/128 dev lo nodad && ip -6 addr add fd00::2/128 dev lo nodad";
    let probe = Command::new("unshare").args(["-rn", "sh", "-c", prepare]).output();
    or_skip(match probe {
        Ok(o) if o.status.success() => Ok(()),
        Ok(o) => {
            let errors = String::from_utf8_lossy(&o.stderr);
            Err(Unavailable::because(format!("no network namespace with IPv6: {}", errors.trim())))
        }
        Err(e) => Err(Unavailable::because(format!("unshare(1) cannot be run: {e}"))),
    })?;
    let whole = format!("{prepare} || exit 1\n{script}");
    Some(Command::new("unshare").args(["-rn", "sh", "-c", &whole]).output().expect("it ran a moment ago"))
}

#[test]
fn two_ipv6_nodes_verify_every_message_whichever_connects() {
    let program = rds_stress().display().to_string();
    for (passive, active) in [("fd00::1", "fd00::2"), ("fd00::2", "fd00::1")] {
        let common = "--start-delay 0.2 --warmup 0.3";
        let script = format!(
            "'{program}' -r {passive} {common} >/dev/null & \
             '{program}' -r {active} -s {passive} -t 2 -d 4 -q 4096 -v -T 1 --connect-retries 20 {common} --json; \
             code=$?; test $code = 0 || kill $!; wait $! && exit $code"
        );
        let Some(output) = in_namespace(&script) else { return };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        assert!(report["requests"].as_u64() > Some(0), "{report:#}");
    }
}
