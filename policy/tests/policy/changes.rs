//! Differences between bundles: by meaning, with fields as people wrote them.

use std::path::Path;

use comity_policy::{Bundle, BundleChanges, BundleSource, Difference, FieldChange, Kind, read_directory};

fn examples() -> BundleSource {
    BundleSource::of_files(read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap())
}

fn replaced(path: &str, from: &str, to: &str) -> BundleSource {
    let mut source = examples();
    let file = source.files.iter_mut().find(|file| file.path == path).unwrap();
    assert!(file.text.contains(from), "{path} has no {from:?}");
    file.text = file.text.replacen(from, to, 1);
    source
}

fn changes(after: &BundleSource) -> BundleChanges {
    let [before, after] = [&examples(), after].map(|source| Bundle::compile(source).unwrap());
    after.changes_since(Some(&before))
}

/// The changed fields of the only changed document, as `path: before -> after`.
fn fields(after: &BundleSource) -> Vec<String> {
    let found = changes(after);
    assert_eq!((found.added, found.changed, found.removed), (0, 1, 0), "{found:?}");
    let [change] = &found.documents[..] else { panic!("{found:?}") };
    let Difference::Changed { fields, more: 0 } = &change.difference else { panic!("{change:?}") };
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    fields
        .iter()
        .map(|FieldChange { path, before, after }| format!("{path}: {} -> {}", shown(before), shown(after)))
        .collect()
}

#[test]
fn comments_layout_and_written_defaults_change_nothing() {
    assert!(changes(&examples()).is_empty());
    let ncc = "clusters/ncc-main.yaml";
    for (from, to) in [
        ("  # Kept free for the centre's own users.\n", ""),
        ("delivery: [namespace, virtual-node]", "delivery:\n    - virtual-node\n    - namespace"),
        ("  accepting: true\n", ""),
        ("reclaimGrace: 30m", "reclaimGrace: 1800s"),
    ] {
        let found = changes(&replaced(ncc, from, to));
        assert!(found.is_empty(), "{from}: {found:?}");
    }
    let mut moved = examples();
    moved.files.iter_mut().find(|file| file.path == ncc).unwrap().path = "clusters/renamed.yaml".to_owned();
    assert!(changes(&moved).is_empty());
}

#[test]
fn changed_fields_have_their_paths_and_both_values() {
    let ncc = |from, to| fields(&replaced("clusters/ncc-main.yaml", from, to));
    assert_eq!(ncc("maxLentGpus: 56", "maxLentGpus: 40"), ["maxLentGpus: 56 -> 40"]);
    assert_eq!(ncc("  maxLentGpus: 56\n", ""), ["maxLentGpus: 56 -> -"]);
    assert_eq!(ncc("accepting: true", "accepting: false"), ["accepting: true -> false"]);
    assert_eq!(ncc("[frontier, midrange]\n", "[frontier]\n"), ["lends[0].classes: midrange -> -"]);
    assert_eq!(ncc("maxGpus: 48", "maxGpus: 32"), ["lends[0].maxGpus: 48 -> 32"]);
    // The second term moves up, and is not shown as changed.
    assert_eq!(
        ncc("    - classes: [frontier, midrange]\n      maxGpus: 48\n", ""),
        ["lends[0]: {classes: [frontier, midrange], maxGpus: 48} -> -"]
    );
}

#[test]
fn members_are_told_apart_by_their_id() {
    let tenants = |from, to| fields(&replaced("tenants/polytechnic.yaml", from, to));
    let bruno = "spiffe://comity.example/user/bruno";
    assert_eq!(
        tenants("role: admin", "role: viewer"),
        [format!("members[{bruno}].role: admin -> viewer")],
        "others stay where they are"
    );
    let alice = "    - id: spiffe://comity.example/user/alice\n      role: submitter\n";
    let dora = alice.replace("alice", "dora");
    let item = |name| format!("{{id: spiffe://comity.example/user/{name}, role: submitter}}");
    assert_eq!(
        tenants(alice, &dora),
        [
            format!("members[spiffe://comity.example/user/dora]: - -> {}", item("dora")),
            format!("members[spiffe://comity.example/user/alice]: {} -> -", item("alice")),
        ]
    );
    assert_eq!(tenants("[frontier, midrange, teaching]", "[teaching, frontier]"), ["classes: midrange -> -"]);
}

#[test]
fn long_lists_of_changed_fields_are_cut_and_counted() {
    let all: Vec<String> = (0..40).map(|n| format!("spiffe://comity.example/user/u{n}")).collect();
    let source =
        replaced("federation.yaml", "maintainers:\n", &format!("maintainers:\n    - {}\n", all.join("\n    - ")));
    let found = changes(&source);
    let Difference::Changed { fields, more } = &found.documents[0].difference else { panic!("{found:?}") };
    assert_eq!((fields.len(), *more), (32, 8));
    assert_eq!((&fields[0].before, fields[0].after.as_ref()), (&None, Some(&all[0])));
}

#[test]
fn documents_are_added_and_removed() {
    let before = Bundle::compile(&examples()).unwrap();
    let count = before.document_count();
    let all = before.changes_since(None);
    assert_eq!((all.added, all.changed, all.removed), (count, 0, 0));
    assert_eq!(all.documents[0].document.kind, Kind::Federation);

    let mut more = examples();
    let text = "apiVersion: policy.comity.dev/v1\nkind: PriorityClass\nmetadata: {name: extra}\nspec: {value: 7}\n";
    more.files.push(comity_policy::SourceFile { path: "extra.yaml".to_owned(), text: text.to_owned() });
    let found = changes(&more);
    assert_eq!((found.added, found.changed, found.removed), (1, 0, 0));
    assert_eq!(found.documents[0].document.to_string(), "PriorityClass extra (extra.yaml:3)");
    let more = Bundle::compile(&more).unwrap();
    let back = before.changes_since(Some(&more));
    assert_eq!((back.added, back.removed), (0, 1));
    assert_eq!(
        (&back.documents[0].difference, back.documents[0].document.file.as_str()),
        (&Difference::Removed, "extra.yaml")
    );
}
