use super::*;

/// A file of that text, and what is read from it.
fn read(text: &str) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rds.toml");
    std::fs::write(&path, text).unwrap();
    let source = Source { file: Some(path.clone()), ..Source::default() };
    source.load().map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
}

fn source(file: &Path, environment: &[(&str, &str)], given: &[(&str, &[&str])]) -> Source {
    let key = |path: &str| Key::all().iter().find(|key| key.path() == path).unwrap();
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Source {
        file: Some(file.to_owned()),
        environment: environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        given: given.iter().map(|(path, values)| (key(path), strings(values))).collect(),
    }
}

/// The example, with every key as if it were not commented out.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') && !key.is_empty() => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    print::example().lines().map(line).collect()
}

#[test]
fn the_shipped_example_and_the_reference_are_made_from_the_catalogue() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = root.join("docs/configuration.md");
    let written = std::fs::read_to_string(&docs).unwrap();
    let (head, _) = written.split_once("\n## `[").unwrap();
    let reference = format!("{head}\n{}", print::reference().trim_end().to_owned() + "\n");
    for (path, is) in [(root.join("packaging/rds-server.toml"), print::example()), (docs, reference)] {
        if std::env::var_os("RDS_WRITE_DOCS").is_some() {
            std::fs::write(&path, &is).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == is,
            "{} is not what the catalogue says: RDS_WRITE_DOCS=1 cargo test -p rds-server --lib config writes it",
            path.display()
        );
    }
}

#[test]
fn the_example_has_every_key_and_says_the_defaults_with_and_without_its_comments() {
    let lines = uncommented();
    let table: toml::Table = toml::from_str(&lines).unwrap();
    for key in Key::all() {
        assert!(table[key.section.name].get(key.name).is_some(), "{}", key.path());
        assert!(
            lines.contains(&key.variable()) && lines.contains(&format!("--{}", key.flag)),
            "{}",
            key.path()
        );
    }
    assert_eq!(table.values().map(|keys| keys.as_table().unwrap().len()).sum::<usize>(), Key::all().len());
    for text in [print::example(), lines] {
        let mut loaded = read(&text).unwrap();
        loaded.settings.file = None;
        assert_eq!(format!("{:?}", loaded.settings), format!("{:?}", Settings::new(Vec::new())));
    }
}

#[test]
fn every_key_is_documented_and_named_once() {
    let mut names = HashSet::new();
    for key in Key::all() {
        assert!(!key.help.is_empty() && !key.help.ends_with('.'), "{}", key.path());
        for name in [key.path(), key.variable(), format!("--{}", key.flag)] {
            assert!(names.insert(name.clone()), "{name}");
        }
        let default = key.default().texts();
        let default: Vec<_> = default.iter().map(String::as_str).collect();
        key.check(&default).unwrap_or_else(|wrong| panic!("{}: {wrong:?}", key.path()));
    }
}

/// A value for each key that is not its default.
const OTHERS: &str = r#"
[node]
address = ["10.0.0.1", "fd00::1"]
listen-port = 1
dial-port = 0x10
lanes = 4
congestion-control = "cubic"
receive-budget = "2m"
[peers]
in-allow = ["10.0.0.0/8"]
in-refuse = "10.0.0.1"
out-allow = ["fd00::/8"]
out-refuse = ["fd00::1"]
[access]
socket = "/tmp/\"x\" \\ y"
socket-mode = "0600"
socket-owner = 0
socket-group = "root"
allow-uid = ["5", 6]
allow-gid = ["root"]
bind = ["deny,uid=5,gid=6,port=80,address=10.0.0.0/8", "allow,port=5-7", "allow"]
[quotas]
max-clients = 1_000
max-clients-per-uid = 2
sockets-per-client = 3
sockets-per-uid = 4
send-bytes-per-client = 5
send-bytes-per-uid = "6k"
receive-bytes-per-client = "7M"
receive-bytes-per-uid = "8g"
arena-per-client = 9
arena-per-uid = 10
peers-per-client = 11
peers-per-uid = 12
pinned-per-client = 13
pinned-per-uid = "14k"
[data]
zero-copy-send = "off"
arena = "1m"
busy-poll = 50
shared-memory = false
[life]
drain = 9
[log]
level = "warn"
format = "json"
[admin]
listen = "unix:/run/rds/admin.sock"
"#;

#[test]
fn what_is_printed_says_the_same_again_and_where_it_is_from() {
    let loaded = read(OTHERS).unwrap();
    let all = differences(&Settings::new(Vec::new()), &loaded.settings);
    assert_eq!(all.len(), Key::all().len(), "of every key there is another value here: {all:?}");
    let printed = print::effective(&loaded);
    let again = read(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert!(differences(&loaded.settings, &again.settings).is_empty(), "{printed}");
    assert!(printed.contains("listen-port = 1  # /") && printed.contains("rds.toml:4\n"), "{printed}");
    let defaults = print::effective(&read("").unwrap());
    assert!(differences(&Settings::new(Vec::new()), &read(&defaults).unwrap().settings).is_empty());
    assert!(defaults.contains("congestion-control = \"\"  # default: the system's\n"), "{defaults}");
}

#[test]
fn the_command_line_counts_more_than_the_environment_and_that_more_than_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    std::fs::write(&file, "[quotas]\nmax-clients = 1\nmax-clients-per-uid = 1\nsockets-per-uid = 1\n[peers]\nin-allow = ['::1']").unwrap();
    let environment = [
        ("RDS_SERVER_QUOTAS_MAX_CLIENTS", "2"),
        ("RDS_SERVER_QUOTAS_MAX_CLIENTS_PER_UID", "2"),
        ("RDS_SERVER_PEERS_IN_ALLOW", " 10.0.0.1  10.0.0.2 "),
        ("RDS_SERVER_DATA_SHARED_MEMORY", "false"),
        ("RDS_SERVER_SERVICE_HOST", "10.96.0.7"),
        ("RDS_SERVER_QUOTAS_MAX_CLIENT", "2"),
    ];
    let loaded = source(&file, &environment, &[("quotas.max-clients", &["3"])]).load().unwrap();
    let settings = &loaded.settings;
    let quotas = settings.quotas;
    assert_eq!((quotas.max_clients, quotas.user.clients, quotas.user.sockets), (3, 2, 1));
    assert_eq!((settings.peers.inbound.allow.len(), settings.shared_memory), (2, false));
    let origins = Key::all().iter().filter(|key| key.section.name == "quotas").map(|key| loaded.origin(key));
    let wanted = [Origin::CommandLine, Origin::Environment, Origin::Default, Origin::File(4)];
    assert_eq!(origins.take(4).cloned().collect::<Vec<_>>(), wanted);
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(
        loaded.warnings[1].contains("did you mean RDS_SERVER_QUOTAS_MAX_CLIENTS?"),
        "{:?}",
        loaded.warnings
    );
    // The environment can name the file, and the command line names another.
    let named = [(FILE_VARIABLE, file.to_str().unwrap())];
    let mut source = source(Path::new("/dev/null"), &named, &[]);
    assert_eq!(source.load().unwrap().settings.quotas.max_clients, 1024);
    source.file = None;
    assert_eq!(source.load().unwrap().settings.quotas.max_clients, 1);
}

#[test]
fn what_is_wrong_is_told_with_file_line_and_the_nearest_key() {
    for (text, says) in [
        (
            "[quota]\nmax-client = 3",
            "FILE:2: unknown key 'quota.max-client': did you mean 'quotas.max-clients'?",
        ),
        (
            "\n[quotas]\nmax_clients = 3",
            "FILE:3: unknown key 'quotas.max_clients': did you mean 'quotas.max-clients'?",
        ),
        ("max-clients = 3", "FILE:1: unknown key 'max-clients': did you mean 'quotas.max-clients'?"),
        ("[node]\nsocket = '/x'", "FILE:2: unknown key 'node.socket': did you mean 'access.socket'?"),
        (
            "[peers]\npeer-in-allow = []",
            "FILE:2: unknown key 'peers.peer-in-allow': did you mean 'peers.in-allow'?",
        ),
        ("node.adress = []", "FILE:1: unknown key 'node.adress': did you mean 'node.address'?"),
        ("[qotas]", "FILE:1: unknown section [qotas]: did you mean '[quotas]'?"),
        ("[x]\ny = 1", "FILE:2: unknown key 'x.y': docs/configuration.md lists all"),
        (
            "[node]\naddress = ['::1',\n 'here']",
            "FILE:3: node.address = 'here': give an address of this host",
        ),
        ("[node]\nlanes = 9", "FILE:2: node.lanes = '9': give a whole number from 1 to 8"),
        ("[node]\nlanes = '4'", "FILE:2: node.lanes: write a whole number"),
        ("[node]\nlanes = 4.5", "FILE:2: node.lanes: write a whole number"),
        ("[node]\nlanes = [4]", "FILE:2: node.lanes: write a whole number"),
        ("[node]\nlanes = -1", "FILE:2: node.lanes = '-1': give"),
        (
            "[quotas]\nmax-clients = 99999999999999999999",
            "FILE:2: quotas.max-clients = '99999999999999999999': give",
        ),
        ("[data]\nshared-memory = 'yes'", "FILE:2: data.shared-memory: write true or false"),
        ("[access]\nsocket-mode = 660", "FILE:2: access.socket-mode: write a string"),
        ("[access]\nbind = ['allow', 'may']", "FILE:2: access.bind = 'may': \"may\": it begins with \"may\""),
        ("[node]\nlanes = 1\nlanes = 2", "FILE:3: this is no TOML: duplicate key"),
        ("[node\nlanes = 1", "FILE:1: this is no TOML:"),
        ("node = 5", "FILE:1: unknown key 'node'"),
        ("[log]\nlevel = \"\\u001b[31m\"", "FILE:2: log.level = ' [31m': possible values"),
    ] {
        let said = read(text).map(|_| ()).unwrap_err();
        assert!(said.contains(says), "{text:?}: {said}");
        assert!(!said.contains('\u{1b}'));
    }
    let both = read("[node]\nlanes = 9\n[log]\nlevel = 'loud'").map(|_| ()).unwrap_err();
    assert_eq!(both.lines().count(), 2, "everything is told at once: {both}");
}

#[test]
fn a_file_that_is_none_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let load = |path: PathBuf| source(&path, &[], &[]).load().map(|_| ()).unwrap_err().to_string();
    assert!(load(folder.path().join("missing")).contains("missing: cannot be read: No such file"));
    assert!(load(folder.path().into()).contains("cannot be read: Is a directory"));
    let other = folder.path().join("other");
    for (bytes, says) in
        [(&[b'\n', 0xff][..], "it is not UTF-8: see line 2"), (&vec![b'#'; 2 << 20], "larger than 1 MiB")]
    {
        std::fs::write(&other, bytes).unwrap();
        assert!(load(other.clone()).contains(says));
    }
}

#[test]
fn what_only_together_is_wrong_is_told_before_anything_is_started() {
    let check = |text: &str| read(text).unwrap().check().map_err(|e| e.to_string());
    check("[node]\naddress = '10.0.0.1'").unwrap();
    for (text, says) in [
        ("", "no node to serve: give an address of this host, with --address ADDRESS"),
        ("[node]\naddress = ['::1', '::1']", "address ::1 is given twice"),
        ("[node]\naddress = ['0.0.0.0']", "0.0.0.0 cannot be a node's address"),
    ] {
        let said = check(text).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(\\[(node|quotas|access|x)\\]\n|[a-z.-]{0,9} ?= ?|[0-9\"'\\[\\]{}#,\n ]{0,6}|\\PC{0,3}){0,12}") {
        let _ = file::parse(&text);
    }
}
