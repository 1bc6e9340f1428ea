//! The logic of zero copy: ranges against a model, cuts of a stream, pinned pages, and what the controllers cost.

mod allocations;
mod budget;
mod controller;
mod ledger;
mod map_controller;
mod path;
mod plan;
