//! JSON Schemas (draft 2020-12) of all kinds, for editors and pipelines.
//!
//! The readers describe themselves: they read a sample with every field, and record what they know and accept. The
//! descriptions are the comments of the samples. A field that a reader gains, and that the sample lacks, fails a test.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::bundle::Bundle;
use crate::compile::load;
use crate::documents::{
    Agreement, Cluster, Dataset, Federation, GpuClass, Institution, PriorityClass, Quota, RequestTemplate, Reservation,
    Rule, Schedule, Spec, Tenant,
};
use crate::kind::{API_VERSION, Kind};
use crate::limits::{MAX_GPU_HOURS_MILLI, MAX_GPUS_MILLI, MAX_LIST_ITEMS, MAX_NAME_CHARS, MAX_TEXT_CHARS};
use crate::problem::{Problem, Problems};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::shapes::{KnownField, Shape, Shapes, below};
use crate::reading::yaml::{Node, ParsedDocument, Value, parse_documents};
use crate::scenarios::{TEST_KIND, read_file};
use crate::source::SourceFile;

/// The samples of all kinds. Together they are one valid bundle.
const SAMPLES: [(Kind, &str); 13] = [
    (Kind::Federation, include_str!("schema/samples/federation.yaml")),
    (Kind::Institution, include_str!("schema/samples/institution.yaml")),
    (Kind::Cluster, include_str!("schema/samples/cluster.yaml")),
    (Kind::Tenant, include_str!("schema/samples/tenant.yaml")),
    (Kind::GpuClass, include_str!("schema/samples/gpuclass.yaml")),
    (Kind::Quota, include_str!("schema/samples/quota.yaml")),
    (Kind::Agreement, include_str!("schema/samples/agreement.yaml")),
    (Kind::PriorityClass, include_str!("schema/samples/priorityclass.yaml")),
    (Kind::RequestTemplate, include_str!("schema/samples/requesttemplate.yaml")),
    (Kind::Schedule, include_str!("schema/samples/schedule.yaml")),
    (Kind::Reservation, include_str!("schema/samples/reservation.yaml")),
    (Kind::Rule, include_str!("schema/samples/rule.yaml")),
    (Kind::Dataset, include_str!("schema/samples/dataset.yaml")),
];
const TEST_SAMPLE: &str = include_str!("schema/samples/policytest.yaml");

/// Mappings of test files that one reader reads, so that the sample need not repeat all fields.
const SAME_READER: [(&str, &str); 5] = [
    ("scenarios[].given.leases[]", "scenarios[].given.waiting[]"),
    ("scenarios[].given.waiting[]", "scenarios[].given.leases[]"),
    ("scenarios[].request", "scenarios[].given.leases[]"),
    ("scenarios[].request", "scenarios[].given.waiting[]"),
    ("given", "scenarios[].given"),
];

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
const LABEL: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
const USER_ID: &str = "^spiffe://[a-z0-9.-]+/user/[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$";
const DURATION: &str = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";
const GPUS: &str = "^([0-9]+(\\.[0-9]{1,9})?|\\.[0-9]{1,9}|[0-9]+m)$";
const CREDITS: &str = "^([0-9]+(\\.[0-9]{1,9})?|\\.[0-9]{1,9})$";
const DATE: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?$";
const QUANTITY: &str = "^[0-9]*\\.?[0-9]*([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$";

/// The words of [`schema`], in the order of the documentation.
#[must_use]
pub fn schema_kinds() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.as_str()).chain([TEST_KIND]).collect()
}

/// The schema of one kind of document, or of test files; `None` for an unknown kind. Upper and lower case count alike.
#[must_use]
pub fn schema(kind: &str) -> Option<Json> {
    if kind.eq_ignore_ascii_case(TEST_KIND) {
        return Some(with_draft(test_schema()));
    }
    let kind = Kind::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(kind))?;
    Some(with_draft(document_schema(kind)))
}

/// The schema of every document of a policy directory, but for tests.
#[must_use]
pub fn policy_schema() -> Json {
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    let cases: Vec<Json> = Kind::ALL
        .iter()
        .map(|kind| {
            json!({
                "if": { "required": ["kind"], "properties": { "kind": { "const": kind.as_str() } } },
                "then": { "$ref": format!("#/$defs/{kind}") },
            })
        })
        .collect();
    let documents: Map<String, Json> =
        Kind::ALL.iter().map(|kind| (kind.as_str().to_owned(), document_schema(*kind))).collect();
    with_draft(json!({
        "title": "Comity policy",
        "description": "A document of a policy directory.",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": { "const": API_VERSION },
            "kind": { "enum": kinds, "description": "The kind of document." },
        },
        "allOf": cases,
        "$defs": documents,
    }))
}

fn with_draft(schema: Json) -> Json {
    let Json::Object(fields) = schema else { return schema };
    let draft = ("$schema".to_owned(), json!(DRAFT));
    Json::Object(std::iter::once(draft).chain(fields).collect())
}

fn sample_of(kind: Kind) -> &'static str {
    SAMPLES.iter().find(|(of, _)| *of == kind).map_or("", |(_, text)| text)
}

/// What the reader of a kind knows, and problems of the kind's sample.
fn kind_shapes(kind: Kind) -> (Shapes, Vec<Problem>) {
    let files = [SourceFile { path: kind.as_str().to_owned(), text: sample_of(kind).to_owned() }];
    match kind {
        Kind::Federation => spec_shapes::<Federation>(&files),
        Kind::Institution => spec_shapes::<Institution>(&files),
        Kind::Cluster => spec_shapes::<Cluster>(&files),
        Kind::Tenant => spec_shapes::<Tenant>(&files),
        Kind::GpuClass => spec_shapes::<GpuClass>(&files),
        Kind::Quota => spec_shapes::<Quota>(&files),
        Kind::Agreement => spec_shapes::<Agreement>(&files),
        Kind::PriorityClass => spec_shapes::<PriorityClass>(&files),
        Kind::RequestTemplate => spec_shapes::<RequestTemplate>(&files),
        Kind::Schedule => spec_shapes::<Schedule>(&files),
        Kind::Reservation => spec_shapes::<Reservation>(&files),
        Kind::Rule => spec_shapes::<Rule>(&files),
        Kind::Dataset => spec_shapes::<Dataset>(&files),
    }
}

fn document_schema(kind: Kind) -> Json {
    let text = sample_of(kind);
    let (shapes, _) = kind_shapes(kind);
    json!({
        "title": kind.as_str(),
        "description": head_comment(text),
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": false,
        "properties": {
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": kind.as_str() },
            "metadata": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": false,
                "properties": { "name": described(name_schema(), "Unique among the documents of this kind.") },
            },
            "spec": SchemaWriter { fields: &shapes.fields, text }.at(""),
        },
    })
}

fn test_schema() -> Json {
    let (shapes, _) = test_shapes();
    let schema = SchemaWriter { fields: &shapes.fields, text: TEST_SAMPLE }.at("");
    let Json::Object(mut schema) = schema else { return schema };
    if let Some(properties) = schema.get_mut("properties").and_then(Json::as_object_mut) {
        properties.insert("apiVersion".to_owned(), json!({ "const": API_VERSION }));
        properties.insert("kind".to_owned(), json!({ "const": TEST_KIND }));
    }
    let head = [("title".to_owned(), json!(TEST_KIND)), ("description".to_owned(), json!(head_comment(TEST_SAMPLE)))];
    Json::Object(head.into_iter().chain(schema).collect())
}

/// What the reader of one kind's `spec` knows, and problems of the files that it read.
fn spec_shapes<T: Spec>(files: &[SourceFile]) -> (Shapes, Vec<Problem>) {
    let mut problems = Problems::new(files);
    let mut shapes = Some(Shapes::default());
    for (index, file) in files.iter().enumerate() {
        for document in parse_documents(index, &file.text, &mut problems) {
            let Some(spec) = spec_of(&document) else { continue };
            let mut reader = FieldReader::new(&mut problems);
            reader.shapes = shapes.take();
            if let Some(mut fields) = Fields::open(spec, "", &mut reader) {
                T::read(&mut fields, &mut reader);
                fields.finish(&mut reader);
            }
            shapes = reader.shapes.take();
        }
    }
    (shapes.unwrap_or_default(), problems.into_sorted())
}

fn spec_of(document: &ParsedDocument) -> Option<&Node> {
    let ParsedDocument::Valid(Node { value: Value::Map(entries), .. }) = document else { return None };
    entries.iter().find(|(key, ..)| key == "spec").map(|(_, _, node)| node)
}

/// What the reader of test files knows, and problems of its sample.
fn test_shapes() -> (Shapes, Vec<Problem>) {
    let files = [SourceFile { path: TEST_KIND.to_owned(), text: TEST_SAMPLE.to_owned() }];
    let mut problems = Problems::new(&files);
    let mut shapes = Shapes::default();
    let bundle = match sample_bundle() {
        Ok(bundle) => bundle,
        Err(found) => return (shapes, found),
    };
    for document in parse_documents(0, TEST_SAMPLE, &mut problems) {
        let ParsedDocument::Valid(node) = document else { continue };
        let mut reader = FieldReader::new(&mut problems);
        reader.shapes = Some(shapes);
        read_file(&node, TEST_KIND, &bundle, &mut reader, &mut Vec::new());
        shapes = reader.shapes.take().unwrap_or_default();
    }
    for (to, from) in SAME_READER {
        shapes.complete(to, from);
    }
    (shapes, problems.into_sorted())
}

/// The bundle of all samples.
fn sample_bundle() -> Result<Bundle, Vec<Problem>> {
    let file = |(kind, text): &(Kind, &str)| SourceFile { path: format!("{kind}.yaml"), text: (*text).to_owned() };
    load(SAMPLES.iter().map(file).collect())
}

/// Writes the schema of the recorded fields.
struct SchemaWriter<'s> {
    fields: &'s BTreeMap<String, KnownField>,
    text: &'s str,
}

impl SchemaWriter<'_> {
    /// The schema of the values at a path.
    fn at(&self, path: &str) -> Json {
        let schema = match self.fields.get(path).and_then(|field| field.shape.as_ref()) {
            Some(Shape::Map) => return self.map(path),
            Some(Shape::List { unique, nonempty }) => {
                let mut list = json!({
                    "type": "array",
                    "maxItems": MAX_LIST_ITEMS,
                    "items": self.at(&format!("{path}[]")),
                });
                if *unique {
                    list["uniqueItems"] = json!(true);
                }
                if *nonempty {
                    list["minItems"] = json!(1);
                }
                list
            }
            Some(shape) => scalar_schema(shape),
            None => json!({}),
        };
        match self.description(path) {
            Some(description) => described(schema, &description),
            None => schema,
        }
    }

    fn map(&self, path: &str) -> Json {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, field_path, field) in self.children(path) {
            properties.insert(name.to_owned(), self.at(field_path));
            if field.required {
                required.push(json!(name));
            }
        }
        let mut schema = Map::new();
        if let Some(description) = self.description(path) {
            schema.insert("description".to_owned(), json!(description));
        }
        schema.insert("type".to_owned(), json!("object"));
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        schema.insert("additionalProperties".to_owned(), json!(false));
        schema.insert("properties".to_owned(), Json::Object(properties));
        Json::Object(schema)
    }

    /// Name, path and facts of the fields of a mapping.
    fn children<'p>(&'p self, path: &'p str) -> impl Iterator<Item = (&'p str, &'p str, &'p KnownField)> {
        self.fields.iter().filter_map(move |(field_path, field)| {
            let below = if path.is_empty() { Some(field_path.as_str()) } else { below(field_path, path) };
            let name = below.filter(|name| !name.is_empty() && !name.contains(['.', '[']))?;
            Some((name, field_path.as_str(), field))
        })
    }

    /// The comment at the field in the sample: behind it, or in the lines before.
    fn description(&self, path: &str) -> Option<String> {
        let place = self.fields.get(path)?.place?;
        let lines: Vec<&str> = self.text.lines().collect();
        let index = usize::try_from(place.line).ok()?.checked_sub(1)?;
        if let Some((_, comment)) = lines.get(index)?.split_once(" # ") {
            return Some(comment.trim().to_owned());
        }
        comment_before(&lines, index)
    }
}

/// The lines of a comment that end before a line, as one text.
fn comment_before(lines: &[&str], index: usize) -> Option<String> {
    let before = lines.get(..index)?;
    let comment = before.iter().rev().map_while(|line| line.trim_start().strip_prefix("# "));
    let mut comment: Vec<&str> = comment.collect();
    comment.reverse();
    (!comment.is_empty()).then(|| comment.join(" "))
}

/// The comment that begins a sample.
fn head_comment(text: &str) -> String {
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
    comment.join(" ")
}

fn described(schema: Json, description: &str) -> Json {
    let Json::Object(fields) = schema else { return schema };
    let first = ("description".to_owned(), json!(description));
    Json::Object(std::iter::once(first).chain(fields).collect())
}

fn name_schema() -> Json {
    json!({ "type": "string", "pattern": LABEL, "maxLength": MAX_NAME_CHARS })
}

/// A number, or text for what YAML does not read as a number.
fn number_or_text(pattern: &str) -> Json {
    json!({ "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string", "pattern": pattern }] })
}

fn scalar_schema(shape: &Shape) -> Json {
    match shape {
        Shape::Map | Shape::List { .. } => json!({}),
        // YAML reads `9.0` and `550` as numbers.
        Shape::Text => json!({ "type": ["string", "number"], "maxLength": MAX_TEXT_CHARS }),
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Shape::Words(words) => json!({ "enum": words }),
        Shape::Name => name_schema(),
        Shape::UserId => json!({ "type": "string", "pattern": USER_ID }),
        Shape::Duration => json!({ "type": "string", "pattern": DURATION, "minLength": 2 }),
        Shape::Gpus => {
            let mut gpus = number_or_text(GPUS);
            gpus["anyOf"][0]["maximum"] = json!(MAX_GPUS_MILLI / 1_000);
            gpus
        }
        Shape::GpuHours => {
            let mut hours = number_or_text(CREDITS);
            hours["anyOf"][0]["maximum"] = json!(MAX_GPU_HOURS_MILLI / 1_000);
            hours
        }
        Shape::Credits => number_or_text(CREDITS),
        Shape::Date => json!({ "type": "string", "pattern": DATE }),
        Shape::Quantity => number_or_text(QUANTITY),
        Shape::NumberOrPattern(pattern) => number_or_text(pattern),
        Shape::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_valid_and_describe_every_field() {
        let bundle = sample_bundle();
        assert!(bundle.is_ok(), "{:#?}", bundle.err());
        let (shapes, problems) = test_shapes();
        assert!(problems.is_empty(), "{problems:#?}");
        let mut all: Vec<(&str, Shapes, &str)> = vec![(TEST_KIND, shapes, TEST_SAMPLE)];
        for kind in Kind::ALL {
            let (shapes, problems) = kind_shapes(kind);
            assert!(problems.is_empty(), "{problems:#?}");
            all.push((kind.as_str(), shapes, sample_of(kind)));
        }
        for (kind, shapes, text) in &all {
            let writer = SchemaWriter { fields: &shapes.fields, text };
            let fields = shapes.fields.keys().filter(|path| !path.is_empty() && !path.ends_with("[]"));
            for path in fields.filter(|path| !matches!(path.as_str(), "apiVersion" | "kind")) {
                let field = &shapes.fields[path];
                assert!(field.place.is_some() && field.shape.is_some(), "the sample of {kind} lacks `{path}`");
                assert!(writer.description(path).is_some(), "the sample of {kind} has no comment at `{path}`");
            }
        }
    }
}
