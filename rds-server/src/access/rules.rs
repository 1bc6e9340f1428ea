//! Who may attach, and which ports and addresses may be bound.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

/// Who a client is, as the kernel told when it connected (`SO_PEERCRED`, `SO_PEERGROUPS`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Process; as it was in the daemon's PID namespace, and of use for log lines only.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Primary group, then all others.
    pub gids: Vec<u32>,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} uid {}", self.pid, self.uid)
    }
}

/// Who may attach at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// These users.
    pub uids: Vec<u32>,
    /// Members of these groups.
    pub gids: Vec<u32>,
}

impl Attach {
    /// Whether `who` may attach: anybody who could open the socket where nobody is listed, otherwise who is listed.
    #[must_use]
    pub fn allows(&self, who: &Who) -> bool {
        (self.uids.is_empty() && self.gids.is_empty())
            || self.uids.contains(&who.uid)
            || self.gids.iter().any(|gid| who.gids.contains(gid))
    }
}

/// One rule about binding: what it is about, and whether that is allowed. Whatever it does not name, it is about all of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    allow: bool,
    uid: Option<u32>,
    gid: Option<u32>,
    ports: RangeInclusive<u16>,
    address: Option<IpNet>,
}

impl Rule {
    fn concerns(&self, who: &Who, address: IpAddr) -> bool {
        self.uid.is_none_or(|uid| uid == who.uid)
            && self.gid.is_none_or(|gid| who.gids.contains(&gid))
            && self.address.is_none_or(|net| net.contains(&address))
    }
}

/// As it is written.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allow { "allow" } else { "deny" })?;
        self.uid.iter().try_for_each(|uid| write!(f, ",uid={uid}"))?;
        self.gid.iter().try_for_each(|gid| write!(f, ",gid={gid}"))?;
        match (*self.ports.start(), *self.ports.end()) {
            (0, u16::MAX) => {}
            (first, last) if first == last => write!(f, ",port={first}")?,
            (first, last) => write!(f, ",port={first}-{last}")?,
        }
        self.address.iter().try_for_each(|net| write!(f, ",address={net}"))
    }
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?}: {why}; write allow or deny, then any of uid=N, gid=N, port=N or port=N-M, address=ADDRESS or address=NETWORK/BITS, \
     with commas between"
)]
pub struct RuleError {
    given: String,
    why: String,
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(s: &str) -> Result<Self, RuleError> {
        let wrong = |why: String| RuleError { given: s.to_owned(), why };
        let mut words = s.split(',').map(str::trim);
        let allow = match words.next() {
            Some("allow") => true,
            Some("deny") => false,
            other => return Err(wrong(format!("it begins with {:?}", other.unwrap_or_default()))),
        };
        let mut rule = Self { allow, uid: None, gid: None, ports: 0..=u16::MAX, address: None };
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| wrong(format!("{word:?} has no value")))?;
            let number = || value.parse().map_err(|_| wrong(format!("{value:?} is not a number")));
            match key {
                "uid" => rule.uid = Some(number()?),
                "gid" => rule.gid = Some(number()?),
                "port" => {
                    rule.ports = ports(value).ok_or_else(|| wrong(format!("{value:?} are no ports")))?
                }
                "address" => {
                    let net = value.parse().or_else(|_| value.parse::<IpAddr>().map(IpNet::from));
                    rule.address = Some(net.map_err(|_| wrong(format!("{value:?} is no address")))?);
                }
                _ => return Err(wrong(format!("{key:?} is not known"))),
            }
        }
        Ok(rule)
    }
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

/// Rules about binding, of which the first that concerns a case decides it. Without any rule everything is allowed; with some, what none of
/// them concerns is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Which ports a client may bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All.
    All,
    /// Some: ranges that begin above each other, with a decision each for the ports from there on.
    Some(Vec<(u16, bool)>),
}

impl Ports {
    /// Whether it may bind this one.
    #[must_use]
    pub fn allows(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Some(from) => {
                from.iter().rev().find(|(first, _)| *first <= port).is_some_and(|(_, yes)| *yes)
            }
        }
    }

    /// All ports from 2 on that may be bound, each once, beginning somewhere: `start` chooses.
    pub fn candidates(&self, start: u16) -> impl Iterator<Item = u16> + '_ {
        let start = start.max(2);
        (start..=u16::MAX).chain(2..start).filter(|port| self.allows(*port))
    }
}

impl Rules {
    /// These, in this order.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// What `who` may bind at a node's address. Worked out once for each client, so that a bind costs no walk.
    #[must_use]
    pub fn ports(&self, who: &Who, address: IpAddr) -> Ports {
        if self.0.is_empty() {
            return Ports::All;
        }
        let rules: Vec<_> = self.0.iter().filter(|rule| rule.concerns(who, address)).collect();
        let decide =
            |port: u16| rules.iter().find(|rule| rule.ports.contains(&port)).is_some_and(|rule| rule.allow);
        // Decisions change only where a range begins or has just ended.
        let mut edges: Vec<u16> = vec![0];
        for rule in &rules {
            edges.push(*rule.ports.start());
            edges.extend(rule.ports.end().checked_add(1));
        }
        edges.sort_unstable();
        edges.dedup();
        let mut from: Vec<_> = edges.into_iter().map(|port| (port, decide(port))).collect();
        from.dedup_by_key(|(_, allowed)| *allowed);
        if from == [(0, true)] { Ports::All } else { Ports::Some(from) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn who(uid: u32, gids: &[u32]) -> Who {
        Who { pid: 1, uid, gids: gids.to_vec() }
    }

    fn rules(texts: &[&str]) -> Rules {
        Rules::new(texts.iter().map(|t| t.parse().unwrap()).collect())
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn who_is_not_listed_may_not_attach_unless_nobody_is() {
        assert!(Attach::default().allows(&who(5, &[])));
        let some = Attach { uids: vec![1], gids: vec![7] };
        assert!(some.allows(&who(1, &[])) && some.allows(&who(5, &[3, 7])));
        assert!(!some.allows(&who(5, &[1])));
    }

    #[test]
    fn the_first_rule_that_concerns_a_case_decides_it() {
        let rules =
            rules(&["deny,uid=5,port=80", "allow,uid=5,port=1-1000", "allow,gid=7,address=10.0.0.0/8"]);
        let five = rules.ports(&who(5, &[5]), HERE);
        assert!(!five.allows(80) && five.allows(79) && five.allows(81) && !five.allows(1001));
        let seven = rules.ports(&who(6, &[1, 7]), HERE);
        assert!(seven.allows(80) && seven.allows(65535));
        assert!(!rules.ports(&who(6, &[1, 7]), IpAddr::from([11, 0, 0, 1])).allows(80));
        assert!(!rules.ports(&who(9, &[9]), HERE).allows(80), "no rule concerns it");
    }

    #[test]
    fn without_rules_every_port_is_everybodys() {
        assert_eq!(Rules::default().ports(&who(5, &[]), HERE), Ports::All);
        assert_eq!(rules(&["allow"]).ports(&who(5, &[]), HERE), Ports::All);
    }

    #[test]
    fn free_ports_are_looked_for_among_those_that_are_allowed() {
        let ports = rules(&["allow,port=0-3", "allow,port=100-102"]).ports(&who(1, &[]), HERE);
        assert_eq!(ports.candidates(101).collect::<Vec<_>>(), [101, 102, 2, 3, 100]);
        assert_eq!(rules(&["deny"]).ports(&who(1, &[]), HERE).candidates(7).count(), 0);
    }

    #[test]
    fn rules_that_cannot_be_read_say_what_is_wrong() {
        for (text, says) in [
            ("permit", "it begins with \"permit\""),
            ("allow,uid=me", "\"me\" is not a number"),
            ("allow,port=9-3", "\"9-3\" are no ports"),
            ("deny,address=somewhere", "\"somewhere\" is no address"),
            ("allow,colour=red", "\"colour\" is not known"),
            ("allow,uid", "\"uid\" has no value"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    proptest! {
        #[test]
        fn worked_out_ports_are_what_the_rules_say_one_by_one(
            ranges in proptest::collection::vec((any::<bool>(), 0..40_u16, 0..40_u16, proptest::option::of(0..2_u32)), 0..6)
        ) {
            let list: Vec<Rule> = ranges.iter().map(|(allow, a, b, uid)| {
                Rule { allow: *allow, uid: *uid, gid: None, ports: *a.min(b)..=*a.max(b), address: None }
            }).collect();
            let ports = Rules::new(list.clone()).ports(&who(0, &[]), HERE);
            for port in 0..=50 {
                let first = list.iter().find(|r| r.uid.is_none_or(|u| u == 0) && r.ports.contains(&port));
                prop_assert_eq!(ports.allows(port), first.map_or(list.is_empty(), |r| r.allow));
            }
        }
    }
}
