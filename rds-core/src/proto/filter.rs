//! Which peers a node talks to.

use std::net::IpAddr;

use ipnet::IpNet;

/// Which peers a node talks to, by their addresses. Its own is never asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerFilter {
    /// Whose connections are accepted.
    pub inbound: PeerRules,
    /// To whom messages are sent, and who is connected to. Of two nodes the smaller address connects: one that may not refuses the larger's
    /// request for it, so nothing comes from there either.
    pub outbound: PeerRules,
}

/// Networks that are allowed or refused. Of those that hold an address the longest prefix decides, and of two alike the refusal. An address
/// in none of them is allowed if none are named as allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerRules {
    /// Networks that are allowed.
    pub allow: Vec<IpNet>,
    /// Networks that are not.
    pub refuse: Vec<IpNet>,
}

impl PeerRules {
    /// Rules of two lists.
    #[must_use]
    pub const fn new(allow: Vec<IpNet>, refuse: Vec<IpNet>) -> Self {
        Self { allow, refuse }
    }

    /// Whether an address passes.
    #[inline]
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        (self.allow.is_empty() && self.refuse.is_empty()) || self.decide(address)
    }

    fn decide(&self, address: IpAddr) -> bool {
        let longest =
            |nets: &[IpNet]| nets.iter().filter(|net| net.contains(&address)).map(IpNet::prefix_len).max();
        match (longest(&self.allow), longest(&self.refuse)) {
            (Some(allowed), refused) => refused.is_none_or(|refused| allowed > refused),
            (None, refused) => refused.is_none() && self.allow.is_empty(),
        }
    }
}

impl PeerFilter {
    /// A filter of both directions' rules.
    #[must_use]
    pub const fn new(inbound: PeerRules, outbound: PeerRules) -> Self {
        Self { inbound, outbound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], refuse: &[&str]) -> PeerRules {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        PeerRules::new(nets(allow), nets(refuse))
    }

    #[test]
    fn the_longest_prefix_decides_and_of_two_alike_the_refusal() {
        for (allow, refuse, address, passes) in [
            (&[][..], &[][..], "192.0.2.1", true),
            (&["10.0.0.0/8"], &[], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "11.0.0.1", false),
            (&[], &["10.0.0.0/8"], "10.1.2.3", false),
            (&[], &["10.0.0.0/8"], "11.0.0.1", true),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.2.2.3", true),
            (&["10.1.2.0/24"], &["10.1.0.0/16"], "10.1.2.3", true),
            (&["10.0.0.0/8"], &["10.0.0.0/8"], "10.1.2.3", false),
            (&["10.0.0.0/8"], &[], "fd00::1", false),
            (&[], &["fd00::/8"], "fd00::1", false),
            (&["::/0"], &[], "10.0.0.1", false),
            (&["10.0.0.1/32"], &["0.0.0.0/0"], "10.0.0.1", true),
        ] {
            assert_eq!(
                rules(allow, refuse).allows(address.parse().unwrap()),
                passes,
                "{address} with {allow:?} but {refuse:?}"
            );
        }
    }
}
