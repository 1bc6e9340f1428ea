//! What a batch of seeds has hit: a fault or a transition that no seed reaches is not tested at all.

use std::fmt;

use super::net::Met;

macro_rules! kinds {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every kind, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// What the tables call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }
    };
}

kinds! {
    /// Kinds of faults that a seed draws.
    Fault {
        /// Two hosts are cut off for less than TCP's patience.
        CutShort = "cut, healed in time",
        /// Two hosts are cut off until TCP gives up.
        CutLong = "cut until keepalive gives up",
        /// One end of a connection is reset, the other not told.
        HalfOpen = "half-open connection",
        /// Both ends are reset.
        Reset = "connection reset at both ends",
        /// Both ends are reset while bytes lie unread in both directions.
        ResetWithData = "connection reset with unread data both ways",
        /// The dialling end is reset: the new connection meets the old one.
        Crossing = "new connection while the old one seems up",
        /// A process dies and another takes its place.
        Restart = "process restart",
        /// A process ends in an orderly way, and another takes its place.
        Goodbye = "orderly shutdown",
        /// A host loses power.
        PowerLoss = "power loss",
        /// A restart with a clock that went backwards.
        ClockBack = "restart with the clock set back",
        /// Programs stop taking messages.
        StopReading = "program stops reading",
        /// A process stands still; its TCP goes on.
        Freeze = "process stands still",
        /// A socket's messages are cancelled.
        Cancel = "cancel",
        /// A socket is closed and its port bound again.
        Rebind = "close and bind again",
        /// A socket's buffers are set to something small.
        Buffers = "buffers made small",
        /// Tiny TCP buffers and long delays.
        SlowNet = "slow net with tiny buffers",
        /// Acknowledgements wait although nothing else is done.
        AckStarvation = "acknowledgements withheld",
        /// A host refuses connections.
        Refuse = "connections refused",
        /// A peer stops reading until its window has been closed for long.
        NeverReads = "peer that never reads",
        /// Another process of the user locks all memory that may be locked.
        Memlock = "locked memory used up elsewhere",
        /// Whether paths pin is set to something else.
        ModeChange = "mode of zero copy changed",
        /// A stranger connects and says nothing.
        SilentStranger = "stranger that says nothing",
        /// Strangers fill the table of handshakes.
        Flood = "flood of connections",
        /// A stranger sends what cannot be RDS.
        Garbage = "stranger that sends garbage",
    }
}

kinds! {
    /// Transitions that a batch must show, seen in actions, counters and byte streams.
    Seen {
        /// An old connection was read out before a new one took over.
        DrainOld = "old connection drained",
        /// ... and had bytes in it that were messages.
        DrainedData = "messages found in a drained connection",
        /// A message was sent again, flagged.
        Retransmitted = "retransmission with flag",
        /// A message that had come before was dropped.
        DuplicateDropped = "duplicate dropped",
        /// A message ended as unknown.
        Unknown = "unknown on restart",
        /// A message reported unknown had in fact arrived.
        UnknownArrived = "unknown, but it had arrived",
        /// A restart of the peer was recognised.
        RestartSeen = "restart of the peer recognised",
        /// The window stopped a sender.
        WindowBlocked = "window blocked",
        /// ... and let it go on.
        WindowReopened = "window reopened",
        /// A port became congested.
        CongestionSet = "congestion set",
        /// ... and free again.
        CongestionCleared = "congestion cleared",
        /// A send was refused because of congestion.
        CongestedSend = "send refused as congested",
        /// ... and the sender told when it was over.
        Uncongested = "told that congestion is over",
        /// Messages for a congested port waited while others passed.
        HeldBack = "messages for a congested port held back",
        /// A larger address knocked.
        Knock = "knock",
        /// ... and was dialled.
        KnockAnswered = "knock answered",
        /// A connection was dropped because nothing was said.
        HandshakeTimeout = "handshake timeout",
        /// Data was sent although a kernel lane had shown nothing.
        IdentityGrace = "identity grace",
        /// A kernel took a connection for another lane than it was made for.
        OtherLane = "connection for another lane ended",
        /// A kernel used a lane that is not offered to it.
        RemembersLanes = "kernel remembers more lanes",
        /// Several lanes to a kernel came up.
        KernelFanOut = "lane fan-out to a kernel",
        /// More than one lane came up.
        LaneFanOut = "lane fan-out",
        /// A pair of sockets stayed on its lane because something was unacknowledged.
        LaneChangeDeferred = "lane change deferred",
        /// A pair of sockets changed its lane.
        LaneChanged = "lane changed",
        /// A connection was refused because of a limit.
        RefusedByLimit = "connection refused by limit",
        /// A connection was dropped because its bytes made no sense.
        FramingLost = "connection dropped for its framing",
        /// A connection was replaced by a newer one.
        Replaced = "connection replaced",
        /// A connection could not be made.
        ConnectFailed = "connect refused or timed out",
        /// TCP took less than offered.
        PartialWrite = "partial write",
        /// A message's bytes ended a connection in the middle.
        CutMessage = "message cut by the end of a connection",
        /// A connection was closed while a write was under way.
        WriteOutlivedClose = "write under way while its connection closed",
        /// Payload was read straight into a message's buffer.
        Target = "payload read into its own buffer",
        /// A connection was throttled.
        Throttled = "reading stopped for want of room",
        /// ... and resumed.
        Resumed = "reading resumed",
        /// Room in the receive queues became short.
        PressureOn = "room became short",
        /// ... and was there again.
        PressureOff = "room there again",
        /// A send met a full send buffer.
        SendFull = "send buffer full",
        /// ... and the program was told of room.
        SendWritable = "told that there is room",
        /// A socket's last message ended.
        Drained = "socket drained",
        /// A message was cancelled.
        Cancelled = "cancelled",
        /// A cancelled message arrived all the same.
        CancelledArrived = "cancelled, but it had arrived",
        /// A message met no socket.
        NoSocket = "dropped for want of a socket",
        /// A message to the node itself.
        Local = "local delivery",
        /// An acknowledgement travelled alone.
        AckOnly = "ack-only header",
        /// An acknowledgement travelled with a message.
        AckPiggybacked = "acknowledgement on a message",
        /// A program's ping was answered.
        Pong = "ping answered",
        /// An empty message arrived.
        EmptyMessage = "empty message",
        /// Towards a kernel: TCP's acknowledgement counted.
        TransportDelivered = "delivered by TCP's acknowledgement",
        /// Between own peers: the node's counted.
        ApplicationDelivered = "delivered by the peer's node",
        /// An old kernel threw away a second connection.
        KernelRejected = "old kernel rejects a second connection",
        /// A new kernel kept a second connection waiting.
        KernelStashed = "new kernel keeps a second connection waiting",
        /// A kernel model dropped a flagged repeat.
        KernelDroppedOld = "kernel drops a flagged repeat",
        /// A kernel model threw away what it had begun before the peer's generation changed.
        KernelDroppedStale = "kernel throws away what a dead life had not acknowledged",
        /// A kernel model lost bytes that TCP had acknowledged.
        KernelLost = "old kernel loses acknowledged bytes",
        /// A kernel restarted.
        KernelRestart = "kernel restarts",
        /// A connection ended in an orderly way.
        OrderlyClose = "orderly close",
        /// A call with MSG_ZEROCOPY took bytes.
        Pinned = "pinned call",
        /// ... and only a part of what it was offered.
        PinnedPartly = "pinned call, partly",
        /// Notifications were merged.
        NotifiedMerged = "notifications merged",
        /// Calls shared one notification.
        NotifiedJointly = "calls that share a notification",
        /// Notifications came out of order.
        NotifiedUnordered = "notifications out of order",
        /// A notification came later than the acknowledgement.
        NotifiedLate = "notification late",
        /// A notification's range crossed 2^32.
        NotifiedWrapped = "notification across the wrap",
        /// The kernel copied what was pinned.
        NotifiedCopied = "notification, copied",
        /// The kernel did not copy.
        NotifiedUncopied = "notification, not copied",
        /// A reset, or a peer that was gone, ended calls.
        PinnedReset = "pinned call ended by a reset",
        /// A disconnect ended calls.
        PinnedDisconnected = "pinned call ended by a disconnect",
        /// A device kept pages for a moment after that.
        DeviceKept = "device keeps pages after the end",
        /// ENOBUFS for want of memory that may be locked.
        EnobufsMemlock = "ENOBUFS by memlock",
        /// ENOBUFS for want of room for notifications.
        EnobufsOptmem = "ENOBUFS by optmem",
        /// EFAULT for memory that cannot be pinned.
        EfaultPinned = "EFAULT by memory that cannot be pinned",
        /// A call that copies met a kernel without memory.
        EnobufsCopy = "ENOBUFS without pinning",
        /// A connection was closed while another thread was in a pinning call.
        ClosedInCall = "closed during a pinned call",
        /// Pinned bytes were transmitted again.
        PinnedAgain = "pinned bytes transmitted again",
        /// Pinned bytes of a dead process went on to be sent.
        PinnedOrphan = "pinned bytes of a dead process",
        /// A header was pinned behind a payload.
        HeaderPinned = "header pinned behind a payload",
        /// A call was notified before its writer was back.
        NotifiedEarly = "notified before the writer is back",
        /// A path was ended because its pages were pinned too long.
        PinOverdue = "path ended for pages pinned too long",
        /// A buffer came back of which bytes were copied.
        ReleasedCopied = "buffer released, copied",
        /// A buffer came back of which no byte was copied.
        ReleasedUncopied = "buffer released, not copied",
        /// The budget had no room for a payload that was handed in.
        BudgetFull = "pin budget full",
        /// Messages were copied because the budget had no room.
        CopiedForBudget = "copied for want of budget",
        /// Messages were copied because too many notifications were outstanding.
        CopiedForNotifications = "copied for want of notifications",
        /// IPv6 was used.
        Ipv6 = "IPv6",
    }
}

/// Counts of everything that happened in one seed, or in many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    faults: Vec<u64>,
    seen: Vec<u64>,
    /// Messages that were accepted for sending.
    pub messages: u64,
    /// Events that were processed.
    pub events: u64,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { faults: vec![0; Fault::ALL.len()], seen: vec![0; Seen::ALL.len()], messages: 0, events: 0 }
    }
}

impl Coverage {
    /// Counts a fault.
    pub fn fault(&mut self, kind: Fault) {
        self.faults[kind as usize] += 1;
    }

    /// Counts a transition.
    pub fn see(&mut self, kind: Seen) {
        self.seen[kind as usize] += 1;
    }

    /// Counts what the model of MSG_ZEROCOPY met.
    pub fn met(&mut self, met: &Met) {
        for (kind, n) in [
            (Seen::Pinned, met.calls),
            (Seen::PinnedPartly, met.partial),
            (Seen::NotifiedMerged, met.merged),
            (Seen::NotifiedJointly, met.joined),
            (Seen::NotifiedUnordered, met.unordered),
            (Seen::NotifiedLate, met.late),
            (Seen::NotifiedWrapped, met.wrapped),
            (Seen::NotifiedCopied, met.copied),
            (Seen::NotifiedUncopied, met.uncopied),
            (Seen::PinnedReset, met.reset),
            (Seen::PinnedDisconnected, met.disconnected),
            (Seen::DeviceKept, met.device),
            (Seen::EnobufsMemlock, met.memlock),
            (Seen::EnobufsOptmem, met.optmem),
            (Seen::EfaultPinned, met.foreign),
            (Seen::PinnedAgain, met.again),
            (Seen::PinnedOrphan, met.orphaned),
        ] {
            self.seen[kind as usize] += n;
        }
    }

    /// How often a transition was hit.
    #[must_use]
    pub fn count(&self, kind: Seen) -> u64 {
        self.seen[kind as usize]
    }

    /// Faults in all.
    #[must_use]
    pub fn faults_total(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds another count.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.faults.iter_mut().zip(&other.faults) {
            *a += b;
        }
        for (a, b) in self.seen.iter_mut().zip(&other.seen) {
            *a += b;
        }
        self.messages += other.messages;
        self.events += other.events;
    }

    /// What was never hit, by name.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let faults = Fault::ALL.iter().filter(|k| self.faults[**k as usize] == 0).map(|k| k.name());
        faults.chain(Seen::ALL.iter().filter(|k| self.seen[**k as usize] == 0).map(|k| k.name())).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>12}  messages", self.messages)?;
        writeln!(f, "{:>12}  events", self.events)?;
        writeln!(f, "faults:")?;
        for kind in Fault::ALL {
            writeln!(f, "{:>12}  {}", self.faults[*kind as usize], kind.name())?;
        }
        writeln!(f, "transitions:")?;
        for kind in Seen::ALL {
            writeln!(f, "{:>12}  {}", self.seen[*kind as usize], kind.name())?;
        }
        Ok(())
    }
}
