//! Drives the protocol over real sockets.
