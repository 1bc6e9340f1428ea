//! How own peers recognise each other: four bytes in the header's padding.
//!
//! Kernels send zero there and ignore what they get. Only congestion maps and handshake messages carry an
//! identity. Specified in `docs/protocol.md`, section "Identity".

const MAGIC: [u8; 2] = *b"uR";
/// Version of what own peers say beyond Linux.
pub const VERSION: u8 = 1;

/// What an own peer can do beyond Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(pub u8);

impl Capabilities {
    /// Acknowledges in `h_ack` what its node has accepted.
    pub const ACKS: Self = Self(0x01);
    /// Advertises how many bytes it will take.
    pub const WINDOW: Self = Self(0x02);
    /// Segments large messages so that they can be mapped.
    pub const SEGMENTATION: Self = Self(0x04);
    /// Takes messages above 1 MiB.
    pub const LARGE_MESSAGES: Self = Self(0x08);

    /// The bits that hold the offered number of lanes, less one.
    const LANES: u8 = 0x70;

    /// These bits, with an offer of `lanes` lanes, 1 to 8.
    #[must_use]
    pub const fn with_lanes(self, lanes: u8) -> Self {
        Self(self.0 & !Self::LANES | (lanes.wrapping_sub(1) << 4) & Self::LANES)
    }

    /// The lanes that the sender offers, 1 to 8.
    #[must_use]
    pub const fn lanes(self) -> u8 {
        ((self.0 & Self::LANES) >> 4) + 1
    }

    /// Whether every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These bits and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These bits but those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The bits that both have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Who is at the other end, as its padding bytes tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Linux, or whatever speaks as it does.
    #[default]
    Kernel,
    /// A userspace node.
    Own {
        /// The sender's version of the own-peer protocol.
        version: u8,
        /// What the sender can do.
        capabilities: Capabilities,
    },
}

impl Identity {
    /// Our own, with `capabilities`.
    #[must_use]
    pub const fn ours(capabilities: Capabilities) -> Self {
        Self::Own { version: VERSION, capabilities }
    }

    /// Reads the padding of a map or handshake message. A version of 0 is nobody's.
    #[must_use]
    pub const fn decode(padding: [u8; 4]) -> Self {
        match padding {
            [a, b, version, capabilities] if a == MAGIC[0] && b == MAGIC[1] && version != 0 => {
                Self::Own { version, capabilities: Capabilities(capabilities) }
            }
            _ => Self::Kernel,
        }
    }

    /// The padding bytes.
    #[must_use]
    pub const fn encode(self) -> [u8; 4] {
        match self {
            Self::Kernel => [0; 4],
            Self::Own { version, capabilities } => [MAGIC[0], MAGIC[1], version, capabilities.0],
        }
    }

    /// Without what may be another on each connection of one life of a node: whether payloads begin segments of their own depends on
    /// the path.
    #[must_use]
    pub const fn of_life(self) -> Self {
        match self {
            Self::Kernel => Self::Kernel,
            Self::Own { version, capabilities } => {
                Self::Own { version, capabilities: capabilities.without(Capabilities::SEGMENTATION) }
            }
        }
    }

    /// Whether a userspace node sent it.
    #[must_use]
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Own { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_peers_say_75_52_version_capabilities() {
        let all = Capabilities::ACKS
            .with(Capabilities::WINDOW)
            .with(Capabilities::SEGMENTATION)
            .with(Capabilities::LARGE_MESSAGES);
        assert_eq!(Identity::ours(all).encode(), [0x75, 0x52, 1, 0x0f]);
        assert_eq!(Identity::decode([0x75, 0x52, 1, 0x0f]), Identity::ours(all));
    }

    #[test]
    fn the_number_of_lanes_is_told_less_one_in_three_bits() {
        let some = Capabilities::ACKS.with(Capabilities::WINDOW);
        assert_eq!(some.with_lanes(1), some, "one lane changes nothing");
        for lanes in 1..=8 {
            let all = some.with_lanes(3).with_lanes(lanes);
            assert_eq!((all.lanes(), all.0), (lanes, 0x03 | (lanes - 1) << 4));
            assert!(all.contains(some) && !all.contains(Capabilities::SEGMENTATION));
        }
    }

    #[test]
    fn kernels_say_zero() {
        assert_eq!(Identity::Kernel.encode(), [0; 4]);
        assert_eq!(Identity::decode([0; 4]), Identity::Kernel);
    }

    #[test]
    fn whatever_is_not_the_magic_is_a_kernel() {
        for padding in [[0x75, 0x53, 1, 1], [0x52, 0x75, 1, 1], [0, 0, 1, 1], [0xff; 4], [0x75, 0x52, 0, 1]] {
            assert_eq!(Identity::decode(padding), Identity::Kernel, "{padding:x?}");
        }
    }

    #[test]
    fn later_versions_and_unknown_capabilities_are_kept_as_announced() {
        let later = Identity::decode([0x75, 0x52, 9, 0xf1]);
        assert_eq!(later, Identity::Own { version: 9, capabilities: Capabilities(0xf1) });
        assert_eq!(later.encode(), [0x75, 0x52, 9, 0xf1]);
    }

    #[test]
    fn a_capability_is_in_common_when_both_have_it() {
        let ours = Capabilities::ACKS.with(Capabilities::WINDOW);
        let theirs = Capabilities::WINDOW.with(Capabilities::LARGE_MESSAGES);
        assert_eq!(ours.common(theirs), Capabilities::WINDOW);
        assert!(!ours.common(theirs).contains(Capabilities::ACKS));
    }
}
