//! What must hold of the repository itself: its layers, its documents, its manners.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository's root, with no `..` in it.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace").to_owned()
}

/// Files under `dir` of the repository whose name ends in one of `endings`, with their text; what builds and tools make left out.
fn files(dir: &str, endings: &[&str]) -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_symlink() || ["target", ".git", "corpus", "artifacts", "fixtures"].contains(&name) {
                continue;
            }
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let root = root();
    let mut paths = Vec::new();
    walk(&root.join(dir), &mut paths);
    paths.sort();
    let texts: Vec<_> = paths
        .iter()
        .map(|p| {
            (p.strip_prefix(&root).expect("below the root").to_str().expect("names in UTF-8").to_owned(), p)
        })
        .filter(|(name, _)| endings.iter().any(|e| name.ends_with(e)))
        .map(|(name, path)| {
            (name, fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        })
        .collect();
    assert!(!texts.is_empty(), "no file below {dir} ends in any of {endings:?}");
    texts
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The identifiers of a line of Rust, without those in its comment or in string literals.
fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').step_by(2).flat_map(|c| c.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// Fails with one line for each finding.
#[track_caller]
fn none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// Each line of `files` for which `wrong` says why, as `file:line: why`.
fn lines_where(files: &[(String, String)], wrong: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = files
        .iter()
        .flat_map(|(name, text)| text.lines().enumerate().map(move |(n, line)| (name, n + 1, line)));
    lines.filter_map(|(name, n, line)| wrong(line).map(|why| format!("{name}:{n}: {why}"))).collect()
}

#[test]
fn wire_proto_and_zerocopy_know_neither_sockets_nor_clocks_nor_threads() {
    const FORBIDDEN: &[&str] = &[
        "sys",
        "engine",
        "thread",
        "Instant",
        "SystemTime",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "os",
        "fs",
        "libc",
        "mio",
        "nix",
        "socket2",
    ];
    for (room, more) in [("wire", &["proto", "info"][..]), ("proto", &[]), ("zerocopy", &[])] {
        let found = lines_where(&files(&format!("rds-core/src/{room}"), &[".rs"]), |line| {
            identifiers(line)
                .find(|i| FORBIDDEN.contains(i) || more.contains(i))
                .map(|i| format!("uses `{i}`"))
        });
        none(&format!("`{room}` is pure"), found);
    }
}

#[test]
fn unsafe_code_lives_in_sys_alone() {
    let mut outside = files("", &[".rs"]);
    outside.retain(|(name, _)| !name.starts_with("rds-core/src/sys/"));
    none(
        "`unsafe` outside rds-core/src/sys",
        lines_where(&outside, |line| {
            identifiers(line).any(|i| i == "unsafe").then(|| line.trim().to_owned())
        }),
    );
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut found = Vec::new();
    for (name, text) in files("rds-core/src/sys", &[".rs"]) {
        let lines: Vec<_> = text.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let declares = ["unsafe fn", "unsafe extern", "unsafe trait"].iter().any(|d| line.contains(d));
            if identifiers(line).any(|i| i == "unsafe") && !declares {
                // The comment stands right above the statement, which may begin a few lines before the block.
                if !lines[n.saturating_sub(8)..=n].iter().any(|l| l.contains("SAFETY:")) {
                    found.push(format!("{name}:{}: {}", n + 1, line.trim()));
                }
            }
        }
    }
    none("`unsafe` without a SAFETY comment", found);
}

#[test]
fn no_source_file_is_too_long_to_read() {
    let long = files("", &[".rs"])
        .into_iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, n)| *n > 700);
    none("more than 700 lines", long.map(|(name, n)| format!("{name}: {n}")).collect());
}

#[test]
fn every_crate_says_what_it_is_and_under_which_licence() {
    let mut found = Vec::new();
    for (name, text) in files("", &["/Cargo.toml"]) {
        for needed in ["description = \"", "license"] {
            if !text.lines().any(|line| line.starts_with(needed)) {
                found.push(format!("{name}: no {needed}"));
            }
        }
    }
    none("incomplete manifests", found);
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(
            read(licence).contains("The userspace RDS authors"),
            "{licence} names no holder of the copyright"
        );
    }
}

#[test]
fn the_changelog_has_the_present_version() {
    let heading = format!("## [{}]", env!("CARGO_PKG_VERSION"));
    assert!(read("CHANGELOG.md").contains(&heading), "CHANGELOG.md has no {heading}");
}

/// The anchor that a heading gets, as the usual renderers make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut found = Vec::new();
    let mut links = 0;
    for (name, text) in files("", &[".md"]) {
        let here = root().join(&name);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { here.clone() } else { here.with_file_name("").join(file) };
            let is_there = target.exists()
                && (fragment.is_empty()
                    || fs::read_to_string(&target)
                        .is_ok_and(|t| t.lines().any(|l| l.starts_with('#') && anchor(l) == fragment)));
            if !is_there {
                found.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(links > 0, "the documents have no links at all");
    none("broken links", found);
}

#[test]
fn the_book_and_the_list_of_pages_have_every_page() {
    let (summary, list) = (read("docs/SUMMARY.md"), read("docs/README.md"));
    let mut found = Vec::new();
    for (name, _) in files("docs", &[".md"]) {
        let page = name.trim_start_matches("docs/");
        let link = format!("]({page})");
        if page != "SUMMARY.md" && !summary.contains(&link) {
            found.push(format!("docs/SUMMARY.md has no {page}"));
        }
        if !["SUMMARY.md", "README.md"].contains(&page) && !list.contains(&link) {
            found.push(format!("docs/README.md has no {page}"));
        }
    }
    none("pages that nobody finds", found);
}

#[test]
fn limits_names_every_setting_with_its_default() {
    let limits = read("docs/limits.md");
    let mut found = Vec::new();
    for (file, of) in
        [("rds-core/src/proto/config.rs", "Config"), ("rds-core/src/engine/options.rs", "ZeroCopy")]
    {
        let source = read(file);
        let body = source
            .split(&format!("pub struct {of} {{"))
            .nth(1)
            .and_then(|rest| rest.split("\n}").next())
            .expect("the settings");
        let mut default = None;
        for line in body.lines().map(str::trim) {
            if let Some(doc) = line.strip_prefix("///") {
                let said = doc.split("Default").nth(1).map(|d| {
                    d.trim_start_matches(':').split(['.', ',', ';']).next().unwrap_or_default().trim()
                });
                default = said.filter(|d| !d.is_empty()).map(str::to_owned).or(default);
            } else if let Some(field) = line.strip_prefix("pub ").and_then(|l| l.split(':').next()) {
                let row = limits.lines().find(|l| l.starts_with(&format!("| `{field}` |")));
                match (row, default.take()) {
                    (None, _) => found.push(format!("`{field}` has no row")),
                    (Some(row), Some(d)) if !row.contains(&d) => {
                        found.push(format!("`{field}`: the default is {d}"))
                    }
                    _ => {}
                }
            }
        }
    }
    none("docs/limits.md and the settings differ", found);
}

#[test]
fn nothing_is_left_unfinished_or_tied_to_one_machine() {
    // Put together here, so that this file does not find itself.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let texts = files("", &[".rs", ".toml", ".md", ".sh", "justfile", ".ci/run", ".ci/fuzz", "planted/run"]);
    none(
        "unfinished work, or a path of one machine",
        lines_where(&texts, |line| words.iter().find(|w| line.contains(**w)).map(|w| format!("`{w}`"))),
    );
}
