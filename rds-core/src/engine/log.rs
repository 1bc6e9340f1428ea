//! Log lines about connections.

use std::io;
use std::net::IpAddr;

use crate::events::note;
use crate::proto::{DropReason, Guarantee};

/// The node dropped a connection.
pub(super) fn closed(peer: IpAddr, lane: Option<u8>, reason: &DropReason) {
    match reason {
        // The ordinary course of things.
        DropReason::Poke | DropReason::PokeDone | DropReason::Replaced | DropReason::Shutdown => {
            note!(ConnectionClosed, %peer, lane, %reason, "connection dropped");
        }
        _ => {
            note!(ConnectionDropped, %peer, lane, sequence = reason.sequence(), %reason, "connection dropped")
        }
    }
}

/// The peer or the network ended a connection.
pub(super) fn lost(peer: IpAddr, lane: Option<u8>, error: Option<&io::Error>) {
    match error {
        Some(error) => note!(ConnectionLost, %peer, lane, reason = %error, "connection lost"),
        None => note!(ConnectionLost, %peer, lane, reason = "closed by the peer", "connection lost"),
    }
}

pub(super) fn accept_failed(error: &io::Error) {
    note!(AcceptFailed, %error, "cannot accept a connection");
}

pub(super) fn up(peer: IpAddr, guarantee: Guarantee, generation: Option<u32>, lanes: u8, restarted: bool) {
    note!(PeerUp, %peer, delivery = guarantee.name(), generation, lanes, restarted, "peer up");
}

/// A kernel remembers more lanes than are offered.
pub(super) fn remembers(peer: IpAddr, lane: u8, lanes: u8) {
    note!(
        PeerRemembersLanes,
        %peer, lane, lanes,
        "the peer uses a lane that this node does not offer: it remembers more lanes from before. What it queues there is \
         stranded when such a connection breaks; offer 8 lanes"
    );
}

pub(super) fn down(peer: IpAddr) {
    note!(PeerDown, %peer, "peer down");
}
