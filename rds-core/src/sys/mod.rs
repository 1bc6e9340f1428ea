//! Raw system calls.
