# Daily work. `just` lists the recipes; each is one or two plain cargo commands.

# List the recipes.
default:
    @just --list --unsorted

# Everything compiles, formatted and without a lint.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Every test and every example in the documentation; a filter may follow: `just test ack`.
test *filter:
    cargo test --workspace {{ filter }}

# Run the simulator over many seeds: `just sim --seeds 10000`.
sim *args:
    cargo run --release -p rds-tests --bin rds-sim -- {{ args }}

# Measure both ends in one process over loopback: `just stress -q 64K -d 8 -T 10`.
stress *args="-T 5":
    cargo run --release --bin rds-stress -- --loopback {{ args }}

# A program for hosts with another C library: target/static/x86_64-unknown-linux-gnu/release/rds-stress.
static:
    RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" cargo build --release --target x86_64-unknown-linux-gnu --target-dir target/static -p rds-stress

# Fuzz, every target or those named, for some seconds each: `just fuzz 60 stream`.
fuzz seconds="10" *targets:
    .ci/fuzz {{ seconds }} {{ targets }}

# Benchmarks.
bench *args:
    cargo run --release -p rds-bench -- {{ args }}

# The tests of lent and mapped memory under AddressSanitizer.
asan:
    .ci/asan

# Format the code.
fmt:
    cargo fmt --all

# The API documentation, opened in a browser.
doc:
    cargo doc --workspace --no-deps --open

# Licences, bans, sources and security advisories of the dependencies (needs cargo-deny, and a network for advisories).
deny:
    cargo deny check

# The whole check, as it runs for every change.
ci:
    bash .ci/run
