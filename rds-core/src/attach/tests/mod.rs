//! Tests of what passes between daemon and program.

mod greeting;
mod hostile;
mod pair;
mod records;
mod stream;
