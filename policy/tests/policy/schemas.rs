//! The committed JSON Schemas are current, and agree with the readers. `COMITY_WRITE_DOCS=1` writes them.

use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use comity_policy::{
    SourceFile, load, policy_schema, read_directory, read_test_files, read_tests, schema, schema_kinds,
};
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// All schemas by the names of their files.
fn all() -> Vec<(String, Value)> {
    let kinds = schema_kinds().into_iter();
    let of_kinds = kinds.map(|kind| (format!("{}.json", kind.to_lowercase()), schema(kind).expect("a known kind")));
    std::iter::once(("policy.json".to_owned(), policy_schema())).chain(of_kinds).collect()
}

/// The documents of a YAML file, as an editor reads them.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("valid YAML")
}

fn compiled(schema: Value) -> (Schemas, SchemaIndex) {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.add_resource("schema.json", schema).expect("a schema");
    let index = compiler.compile("schema.json", &mut schemas).expect("a valid schema of draft 2020-12");
    (schemas, index)
}

#[test]
fn the_committed_schemas_are_current() {
    for (name, schema) in all() {
        let path = folder("schemas").join(&name);
        if std::env::var_os("COMITY_WRITE_DOCS").is_some() {
            let text = serde_json::to_string_pretty(&schema).expect("a schema") + "\n";
            std::fs::write(&path, text).expect("the schema is written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let committed: Value = serde_json::from_str(&committed).unwrap_or_default();
        assert!(
            committed == schema,
            "policy/schemas/{name} is not current: COMITY_WRITE_DOCS=1 cargo test -p comity-policy schemas"
        );
    }
}

/// Checks each document of a file.
fn check_documents(file: &SourceFile, schemas: &Schemas, index: SchemaIndex) {
    for document in documents(&file.text) {
        let result = schemas.validate(&document, index);
        let error = result.err().map(|error| error.to_string());
        assert_eq!(error, None, "{}", file.path);
    }
}

#[test]
fn every_example_is_valid_by_its_schema() {
    let (schemas, index) = compiled(policy_schema());
    let files = read_directory(&folder("examples")).expect("the examples");
    for file in files {
        check_documents(&file, &schemas, index);
    }
    let (schemas, index) = compiled(schema("PolicyTest").expect("test files have a schema"));
    for file in read_test_files(&folder("examples")).expect("tests") {
        check_documents(&file, &schemas, index);
    }
}

/// Puts a field that does not exist into each mapping of a document in turn.
fn with_unknown_fields(document: &Value, visit: &mut dyn FnMut(Value)) {
    fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.push(at.to_owned());
                fields.iter().for_each(|(name, value)| pointers(value, &format!("{at}/{name}"), found));
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    pointers(document, "", &mut found);
    for pointer in found {
        let mut changed = document.clone();
        changed.pointer_mut(&pointer).expect("it was found")["notAField"] = Value::from("x");
        visit(changed);
    }
}

/// Removes each field of a document in turn.
fn without_fields(document: &Value, visit: &mut dyn FnMut(Value)) {
    fn pointers(value: &Value, at: &str, found: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    found.push((at.to_owned(), name.clone()));
                    pointers(value, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    pointers(document, "", &mut found);
    for (pointer, name) in found {
        let mut changed = document.clone();
        changed.pointer_mut(&pointer).and_then(Value::as_object_mut).expect("it was found").remove(&name);
        visit(changed);
    }
}

#[test]
fn schemas_and_readers_refuse_the_same_fields() {
    let (schemas, index) = compiled(policy_schema());
    let files = read_directory(&folder("examples")).expect("the examples");
    let mut tried = 0;
    for (at, file) in files.iter().enumerate() {
        let all = documents(&file.text);
        for (number, document) in all.iter().enumerate() {
            // JSON is YAML: the readers see the changed document among the others.
            let read = |changed: Value| {
                let mut texts: Vec<String> = all.iter().map(Value::to_string).collect();
                texts[number] = changed.to_string();
                let mut files = files.clone();
                files[at].text = texts.join("\n---\n");
                load(files)
            };
            with_unknown_fields(document, &mut |changed| {
                assert!(schemas.validate(&changed, index).is_err(), "{}: {changed}", file.path);
                assert!(read(changed.clone()).is_err(), "{}: {changed}", file.path);
                tried += 1;
            });
            without_fields(document, &mut |changed| {
                // What the schema requires, the readers require; they also know rules between fields.
                if schemas.validate(&changed, index).is_err() {
                    assert!(read(changed.clone()).is_err(), "{}: {changed}", file.path);
                }
                tried += 1;
            });
        }
    }
    assert!(tried > 300, "{tried}");
}

#[test]
fn problems_of_test_files_have_line_and_remedy() {
    let files = read_directory(&folder("examples")).expect("the examples");
    let bundle = load(files).expect("valid");
    let head = "apiVersion: policy.comity.dev/v1\nkind: PolicyTest\ngiven: {now: 2026-11-23}\nscenarios:\n- name: a\n";
    let request = "  request: {tenant: poly-ml, origin: polytech-campus, class: frontier, gpus: 1}\n";
    for (text, code, line, word) in [
        ("  requst: {}\n  expect: {reclaims: []}\n".to_owned(), "unknown-field", 6, "did you mean `request`?"),
        (format!("{request}  expect: {{decision: plced}}\n"), "invalid-value", 7, "did you mean `placed`?"),
        (format!("{request}  expect: {{decision: waits}}\n"), "contradiction", 7, "another cause"),
        (
            format!("{request}  expect: {{decision: placed, cites: [Quota poly-m]}}\n"),
            "unknown-reference",
            7,
            "did you mean `poly-ml`?",
        ),
        (
            format!("{request}  expect: {{decision: placed, cites: [Quota poly-ml maxGpus]}}\n"),
            "unknown-reference",
            7,
            "maxGpusPerRequest",
        ),
        (
            format!("{}  expect: {{decision: placed}}\n", request.replace("frontier", "fronteer")),
            "unknown-reference",
            6,
            "did you mean `frontier`?",
        ),
        ("  expect: {}\n".to_owned(), "contradiction", 6, "add one of the two"),
        ("  expect: {reclaims: [{lease: l}]}\n".to_owned(), "unknown-reference", 6, ""),
        (
            "  given: {clusters: [{name: ncc-main, nodes: [{gpus: 8, product: NVIDIA-H100}]}]}\n  expect: {reclaims: \
             []}\n"
                .to_owned(),
            "invalid-value",
            6,
            "memoryMiB",
        ),
    ] {
        let file = SourceFile { path: "a.test.yaml".to_owned(), text: format!("{head}{text}") };
        let problems = read_tests(&[file], &bundle).expect_err(&text);
        let found = problems.iter().find(|problem| problem.code.as_str() == code);
        let found = found.unwrap_or_else(|| panic!("{code} is not in {problems:#?}"));
        assert_eq!((found.line, found.file.as_str()), (line, "a.test.yaml"), "{problems:#?}");
        assert!(found.remedy.contains(word), "{found}");
    }
}
