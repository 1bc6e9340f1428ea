//! Shared parts of the whole-system tests.
