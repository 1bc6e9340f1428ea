//! What zero copy is decided by: pure logic, without system calls, threads or clocks.
pub mod slots;
