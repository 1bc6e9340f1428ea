//! Whether what the tasks rely on was started anew: a daemon, or the node of the other side. What was on its way then gets no answer.

use std::net::IpAddr;

/// So many seconds without a message, after one was started anew, and nothing will come any more.
const HOPELESS: u32 = 3;

/// Which lives they have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// Whether the daemon is there, if there is one.
    pub attached: bool,
    /// How often it was started anew.
    pub restarts: u64,
    /// Messages that were on their way then.
    pub unknown: u64,
    /// The other side's node, as far as that is known.
    pub peer: Option<u32>,
}

/// Looks at them every second.
#[derive(Debug)]
pub struct Watch {
    peer: IpAddr,
    known: Option<Lives>,
    /// What was started anew, in words.
    anew: Option<String>,
    /// Seconds without a message since.
    idle: u32,
}

impl Watch {
    /// Of a run that begins now.
    #[must_use]
    pub fn new(peer: IpAddr, now: Option<Lives>) -> Self {
        Self { peer, known: now, anew: None, idle: 0 }
    }

    /// After a second in which something came, or not: a line to be shown, if there is something new.
    pub fn look(&mut self, moved: bool, now: Option<Lives>) -> Option<String> {
        if moved {
            (self.idle, self.anew) = (0, None);
        } else {
            self.idle += 1;
        }
        let (known, now) = (self.known?, now?);
        let peer = now.peer.or(known.peer);
        self.known = Some(Lives { peer, ..now });
        let line = if now.restarts > known.restarts {
            let unknown = now.unknown.saturating_sub(known.unknown);
            self.anew = Some("the daemon was started anew".to_owned());
            format!(
                "the daemon was started anew: {unknown} messages that were on their way have an unknown fate, and what waited in it is lost"
            )
        } else if known.peer.is_some() && peer != known.peer {
            let what = format!("the node of {} was started anew", self.peer);
            let line = format!(
                "{what}: what was on its way there has an unknown fate, and what waited there is lost"
            );
            self.anew = Some(what);
            line
        } else if known.attached && !now.attached {
            return Some("the daemon has gone away: waiting for it to be started anew".to_owned());
        } else {
            return None;
        };
        self.idle = 0;
        Some(line)
    }

    /// Whether there is no hope for anything to come.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.anew.is_some() && self.idle >= HOPELESS
    }

    /// At the end of a run: why nothing came any more, if so.
    #[must_use]
    pub fn verdict(&self) -> Option<String> {
        let anew = self.anew.as_ref().filter(|_| self.idle > 0)?;
        Some(format!(
            "{anew}, and no message has come since: all requests were lost with it, and rds-stress sends none again; start both sides again"
        ))
    }

    /// Whether it is worth asking for what takes a call: nothing came, or not all is known.
    #[must_use]
    pub fn wants(&self, moved: bool) -> bool {
        !moved || self.known.is_some_and(|known| known.peer.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Lives = Lives { attached: true, restarts: 0, unknown: 0, peer: Some(7) };

    fn watch(known: Option<Lives>) -> Watch {
        Watch::new([10, 0, 0, 2].into(), known)
    }

    #[test]
    fn a_quiet_network_is_no_restart() {
        let mut watch = watch(Some(Lives { peer: None, ..THERE }));
        for _ in 0..9 {
            assert_eq!(watch.look(false, Some(THERE)), None);
        }
        assert!(!watch.is_hopeless() && watch.verdict().is_none());
    }

    #[test]
    fn a_daemon_that_comes_back_is_told_once_and_is_hopeless_if_nothing_comes() {
        let mut watch = watch(Some(THERE));
        let gone = Lives { attached: false, ..THERE };
        assert!(watch.look(false, Some(gone)).unwrap().contains("gone away"));
        assert_eq!(watch.look(false, Some(gone)), None);
        let back = Lives { restarts: 1, unknown: 5, ..THERE };
        assert!(watch.look(false, Some(back)).unwrap().contains("started anew: 5 messages"));
        assert!(!watch.is_hopeless());
        for _ in 0..HOPELESS {
            assert_eq!(watch.look(false, Some(back)), None);
        }
        assert!(watch.is_hopeless() && watch.verdict().unwrap().contains("all requests were lost"));
    }

    #[test]
    fn a_run_that_goes_on_is_none_that_failed() {
        let mut watch = watch(Some(THERE));
        let other = Lives { peer: Some(8), ..THERE };
        assert!(watch.look(false, Some(other)).unwrap().contains("the node of 10.0.0.2 was started anew"));
        for _ in 0..5 {
            assert_eq!(watch.look(true, Some(Lives { peer: None, ..other })), None);
        }
        watch.look(false, Some(other));
        assert!(!watch.is_hopeless() && watch.verdict().is_none());
    }

    #[test]
    fn what_has_no_lives_is_never_hopeless() {
        let mut watch = watch(None);
        for _ in 0..9 {
            assert_eq!(watch.look(false, None), None);
        }
        assert!(!watch.is_hopeless());
    }
}
