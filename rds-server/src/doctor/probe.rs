//! Zero copy, tried in both directions: two nodes on loopback, which send each other what a daemon would, by the library's own means.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rds_core::engine::{Completion, Engine, Event, Options, Socket};
use rds_core::zerocopy::{Mode, ReceiveCounts, SendCounts};

use super::finding::{Finding, Status, Todo, size};
use crate::settings::Settings;

/// Bytes of each message: whole pages of every size.
const MESSAGE: usize = 256 << 10;
/// The first comes before the paths know each other.
const MESSAGES: u64 = 8;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was tried, and seen.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    sent: SendCounts,
    received: ReceiveCounts,
}

/// Two findings: sending, and receiving.
#[must_use]
pub fn check(settings: &Settings) -> Vec<Finding> {
    let tried = attempt();
    vec![judge_send(&tried, settings.zero_copy_send), judge_receive(&tried)]
}

/// Two nodes that nobody else meets, and messages from one to the other.
fn attempt() -> Result<Tried, String> {
    let [b, c] = [fastrand::u8(64..192), fastrand::u8(..)];
    let address = |host| IpAddr::from(Ipv4Addr::new(127, b, c, host));
    let open = |host: u8, dial: Option<u16>| {
        let mut options = Options::new(address(host));
        options.listen_port = 0;
        options.dial_port = dial.unwrap_or(options.dial_port);
        (options.zero_copy.send, options.zero_copy.receive) = (Mode::On, Mode::On);
        Engine::open(options).map_err(|e| format!("a node on loopback cannot be opened: {e}"))
    };
    let there = open(2, None)?;
    let here = open(1, Some(there.listen_addr().port()))?;
    let bind = |engine: &Engine| engine.bind(0).map_err(|e| format!("a node on loopback has no port: {e}"));
    let (sender, receiver) = (bind(&here)?, bind(&there)?);
    let result = exchange(&here, &sender, &receiver);
    let tried = Tried {
        sent: here.snapshot(false).zero_copy.send,
        received: there.snapshot(false).zero_copy.recv.counts,
    };
    sender.close();
    result.map(|()| tried)
}

fn exchange(here: &Engine, sender: &Socket, receiver: &Socket) -> Result<(), String> {
    sender.set_send_timeout(Some(PATIENCE));
    receiver.set_recv_timeout(Some(PATIENCE));
    let mut ends = Vec::new();
    for n in 0..MESSAGES {
        let byte = n as u8 + 1;
        let mut payload = here.buffer(MESSAGE);
        payload.fill(byte);
        let sent = sender.send_owned(payload, receiver.local_addr());
        sent.map_err(|(e, _)| format!("a message over loopback cannot be sent: {e}"))?;
        match receiver.recv_lease().map_err(|e| format!("a message over loopback does not arrive: {e}"))? {
            Event::Message(m) if m.payload.len() == MESSAGE && m.payload.iter().all(|b| *b == byte) => {}
            _ => return Err("a message over loopback arrives as another than was sent".to_owned()),
        }
    }
    let released =
        |ends: &[Completion]| ends.iter().filter(|e| matches!(e, Completion::Released { .. })).count() as u64;
    while released(&ends) < MESSAGES {
        if sender.wait_completions(&mut ends, Some(PATIENCE)) == 0 {
            return Err(format!("the kernel lets go of {} of {MESSAGES} messages", released(&ends)));
        }
    }
    Ok(())
}

fn broken(name: &str, why: &str) -> Finding {
    let todo = Todo::new(
        "ip link set lo up; iptables-save and nft list ruleset show what filters loopback",
        "IPAddressDeny= must leave localhost, and RestrictAddressFamilies= have AF_INET",
        "start the container with a loopback interface, as every engine does by default",
    );
    Finding::bad(Status::Fail, name, why, "nodes cannot exchange messages on this host", todo)
}

fn judge_send(tried: &Result<Tried, String>, mode: Mode) -> Finding {
    const NAME: &str = "zero-copy-send";
    let sent = match tried {
        Ok(tried) => tried.sent,
        Err(why) => return broken(NAME, why),
    };
    if sent.calls > 0 && sent.notified > 0 {
        let copied = if sent.copied > 0 {
            "; the kernel copied all the same, as it does on loopback: towards other hosts it depends on the network device"
        } else {
            ""
        };
        let found = format!("works: {} calls pinned, {} notified{copied}", sent.calls, sent.notified);
        return Finding::ok(NAME, found);
    }
    let (found, why, todo) = if sent.fallbacks.budget + sent.fallbacks.refused > 0 {
        (
            "the kernel may not pin enough for one message",
            "all is copied; see memlock",
            Todo::new(
                "ulimit -S -l 65536",
                "LimitMEMLOCK=64M",
                "docker run --ulimit memlock=67108864:67108864 ...",
            ),
        )
    } else if sent.fallbacks.notifications > 0 {
        (
            "there is no room for notifications",
            "all is copied; see optmem",
            Todo::sysctl("net.core.optmem_max", "131072"),
        )
    } else {
        (
            "the kernel does not send without a copy (SO_ZEROCOPY, MSG_ZEROCOPY)",
            "all is copied",
            Todo::new(
                "boot a kernel from 4.14 on, one of Linux itself: emulations such as gVisor have none",
                "boot a kernel from 4.14 on",
                "run it in a runtime with the host's kernel (runc), not gVisor",
            ),
        )
    };
    if mode == Mode::Off {
        return Finding::note(NAME, found, "without effect: zero-copy sending is off");
    }
    Finding::bad(Status::Warning, NAME, found, why, todo)
}

fn judge_receive(tried: &Result<Tried, String>) -> Finding {
    const NAME: &str = "zero-copy-receive";
    let received = match tried {
        Ok(tried) => tried.received,
        Err(why) => return broken(NAME, why),
    };
    if received.mapped_bytes > 0 {
        let all = size(MESSAGES * MESSAGE as u64);
        let found = format!("works: {} of {all} were mapped", size(received.mapped_bytes));
        return Finding::ok(NAME, found);
    }
    let unavailable = received.copied.unavailable > 0;
    let found = if unavailable {
        "the kernel does not map what was received (TCP_ZEROCOPY_RECEIVE)"
    } else {
        "nothing that was received could be mapped"
    };
    let why = "only programs with a node of their own that ask for it lose by that: the daemon receives into memory that it shares with its programs";
    Finding::note(NAME, found, why)
}

#[cfg(test)]
mod tests {
    use rds_core::zerocopy::Fallbacks;

    use super::*;

    fn sent(calls: u64, notified: u64, copied: u64, fallbacks: Fallbacks) -> Result<Tried, String> {
        let sent = SendCounts { calls, notified, copied, fallbacks, ..SendCounts::default() };
        Ok(Tried { sent, ..Tried::default() })
    }

    #[test]
    fn sending_is_judged_by_what_was_pinned_and_why_not() {
        let none = Fallbacks::default();
        let finding = judge_send(&sent(8, 8, 8, none), Mode::Auto);
        assert!(
            finding.status == Status::Ok && finding.found.contains("as it does on loopback"),
            "{finding:?}"
        );
        assert!(!judge_send(&sent(8, 8, 0, none), Mode::Auto).found.contains("loopback"));
        for (fallbacks, word) in [
            (Fallbacks { budget: 8, ..none }, "see memlock"),
            (Fallbacks { refused: 8, ..none }, "see memlock"),
            (Fallbacks { notifications: 8, ..none }, "see optmem"),
            (none, "all is copied"),
        ] {
            let finding = judge_send(&sent(0, 0, 0, fallbacks), Mode::On);
            assert!(finding.status == Status::Warning && finding.why.contains(word), "{finding:?}");
            assert_eq!(judge_send(&sent(0, 0, 0, fallbacks), Mode::Off).status, Status::Note);
        }
    }

    #[test]
    fn receiving_is_judged_by_what_was_mapped() {
        let mut tried = Tried::default();
        tried.received.copied.unavailable = 9;
        let finding = judge_receive(&Ok(tried));
        assert!(
            finding.status == Status::Note && finding.found.contains("TCP_ZEROCOPY_RECEIVE"),
            "{finding:?}"
        );
        tried.received.mapped_bytes = 4096;
        assert_eq!(judge_receive(&Ok(tried)).status, Status::Ok);
    }

    #[test]
    fn a_loopback_that_does_not_carry_is_a_failure_of_both() {
        let tried = Err("a message over loopback does not arrive".to_owned());
        for finding in [judge_send(&tried, Mode::Off), judge_receive(&tried)] {
            assert!(finding.status == Status::Fail && finding.found.contains("loopback"), "{finding:?}");
        }
    }

    #[test]
    fn this_host_is_tried_for_real() {
        let tried = attempt().unwrap();
        let did_something = tried.sent.calls + tried.sent.fallbacks.budget + tried.sent.fallbacks.refused;
        if did_something == 0 {
            println!("skipped: this kernel sends nothing without a copy: {tried:?}");
            return;
        }
        assert_eq!(tried.sent.notified, tried.sent.calls, "{tried:?}");
        let received = tried.received.bytes + tried.received.copied.total();
        assert_eq!(received, MESSAGES * MESSAGE as u64, "{tried:?}");
    }
}
