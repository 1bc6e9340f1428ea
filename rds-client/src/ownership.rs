//! What the compiler refuses, so that no safe program changes memory that the kernel may still read, or reads memory that is gone. Each case
//! stands twice: as it is refused, and without the line at fault, where it compiles.
//!
//! A pool buffer that was handed over cannot be written:
//!
//! ```compile_fail,E0382
//! fn f(socket: &rds_client::Socket, mut buffer: rds_client::PoolBuffer, to: std::net::SocketAddr) {
//!     let _ = socket.send_owned(buffer, to);
//!     buffer[0] = 1;
//! }
//! ```
//! ```
//! fn f(socket: &rds_client::Socket, mut buffer: rds_client::PoolBuffer, to: std::net::SocketAddr) {
//!     buffer[0] = 1;
//!     let _ = socket.send_owned(buffer, to);
//! }
//! ```
//!
//! No reference into it outlives the handing over:
//!
//! ```compile_fail,E0505
//! fn f(socket: &rds_client::Socket, mut buffer: rds_client::PoolBuffer, to: std::net::SocketAddr) {
//!     let inside = &mut buffer[10];
//!     let _ = socket.send_owned(buffer, to);
//!     *inside = 1;
//! }
//! ```
//! ```
//! fn f(socket: &rds_client::Socket, mut buffer: rds_client::PoolBuffer, to: std::net::SocketAddr) {
//!     let inside = &mut buffer[10];
//!     *inside = 1;
//!     let _ = socket.send_owned(buffer, to);
//! }
//! ```
//!
//! Borrowed memory cannot be handed over, since its owner could change it meanwhile:
//!
//! ```compile_fail,E0521
//! fn f(socket: &rds_client::Socket, to: std::net::SocketAddr, mine: &[u8]) {
//!     let _ = socket.send_owned(mine, to);
//! }
//! ```
//! ```
//! fn f(socket: &rds_client::Socket, to: std::net::SocketAddr, mine: &'static [u8]) {
//!     let _ = socket.send_owned(mine, to);
//! }
//! ```
//!
//! An owner that borrows, likewise:
//!
//! ```compile_fail,E0521
//! struct Borrows<'a>(&'a [u8]);
//! impl AsRef<[u8]> for Borrows<'_> {
//!     fn as_ref(&self) -> &[u8] {
//!         self.0
//!     }
//! }
//! fn f(socket: &rds_client::Socket, to: std::net::SocketAddr, mine: &[u8]) {
//!     let _ = socket.send_owned(rds_client::Owned::new(Borrows(mine)), to);
//! }
//! ```
//! ```
//! struct Borrows<'a>(&'a [u8]);
//! impl AsRef<[u8]> for Borrows<'_> {
//!     fn as_ref(&self) -> &[u8] {
//!         self.0
//!     }
//! }
//! fn f(socket: &rds_client::Socket, to: std::net::SocketAddr, mine: &'static [u8]) {
//!     let _ = socket.send_owned(rds_client::Owned::new(Borrows(mine)), to);
//! }
//! ```
//!
//! An owner that another thread could reach without a lock cannot go to the node's threads:
//!
//! ```compile_fail,E0277
//! struct Shares(std::rc::Rc<Vec<u8>>);
//! impl AsRef<[u8]> for Shares {
//!     fn as_ref(&self) -> &[u8] {
//!         &self.0
//!     }
//! }
//! fn f(shares: Shares) -> rds_client::Owned {
//!     rds_client::Owned::new(shares)
//! }
//! ```
//! ```
//! struct Shares(std::sync::Arc<Vec<u8>>);
//! impl AsRef<[u8]> for Shares {
//!     fn as_ref(&self) -> &[u8] {
//!         &self.0
//!     }
//! }
//! fn f(shares: Shares) -> rds_client::Owned {
//!     rds_client::Owned::new(shares)
//! }
//! ```
//!
//! A payload that was handed over cannot be cloned into a second, writable owner:
//!
//! ```compile_fail,E0599
//! fn f(buffer: rds_client::PoolBuffer) -> rds_client::PoolBuffer {
//!     buffer.clone()
//! }
//! ```
//! ```
//! fn f(buffer: rds_client::PoolBuffer) -> rds_client::PoolBuffer {
//!     buffer
//! }
//! ```
//!
//! A lease cannot be written: its pages may be the kernel's.
//!
//! ```compile_fail,E0594
//! fn f(mut lease: rds_client::Lease) {
//!     lease[0] = 1;
//! }
//! ```
//! ```
//! fn f(lease: rds_client::Lease) -> u8 {
//!     lease[0]
//! }
//! ```
//!
//! What was read from a lease does not outlive it:
//!
//! ```compile_fail,E0505
//! fn f(lease: rds_client::Lease) -> u8 {
//!     let inside = &lease[0];
//!     drop(lease);
//!     *inside
//! }
//! ```
//! ```
//! fn f(lease: rds_client::Lease) -> u8 {
//!     let inside = lease[0];
//!     drop(lease);
//!     inside
//! }
//! ```
