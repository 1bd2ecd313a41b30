//! Reads test files to scenarios, and reports every problem.

use super::Scenario;
use super::asked::AskedRequest;
use super::expected::Expected;
use super::given::Given;
use crate::bundle::Bundle;
use crate::compile::{check_api_version, drop_byte_order_mark, report_unknown};
use crate::kind::Kind;
use crate::limits::{MAX_SCENARIOS, MAX_TEXT_CHARS};
use crate::problem::{Place, Problem, ProblemCode, Problems, shorten};
use crate::reading::fields::{FieldReader, Fields, Reference, Target};
use crate::reading::yaml::{Node, ParsedDocument, parse_documents};
use crate::source::SourceFile;

/// The `kind` of test files.
pub const TEST_KIND: &str = "PolicyTest";

/// Reads the scenarios of all test files, by file and line. Names must be those of `bundle`.
///
/// # Errors
/// All problems of all files, by file and line.
pub fn read_tests(files: &[SourceFile], bundle: &Bundle) -> Result<Vec<Scenario>, Vec<Problem>> {
    let mut files = files.to_vec();
    files.iter_mut().for_each(drop_byte_order_mark);
    let mut problems = Problems::new(&files);
    let mut scenarios = Vec::new();
    for (index, file) in files.iter().enumerate() {
        for document in parse_documents(index, &file.text, &mut problems) {
            let ParsedDocument::Valid(node) = document else { continue };
            let mut reader = FieldReader::new(&mut problems);
            read_file(&node, &file.path, bundle, &mut reader, &mut scenarios);
            let references = std::mem::take(&mut reader.references);
            check_references(&references, bundle, &mut problems);
        }
    }
    if scenarios.len() > MAX_SCENARIOS {
        let message = format!("there are {} scenarios; at most {MAX_SCENARIOS} are allowed", scenarios.len());
        problems.whole("", ProblemCode::TooLarge, message, "is this the right directory?");
    }
    if problems.is_empty() { Ok(scenarios) } else { Err(problems.into_sorted()) }
}

fn check_references(references: &[Reference], bundle: &Bundle, problems: &mut Problems<'_>) {
    for reference in references {
        let known = match reference.target {
            Target::Document(kind) => bundle.names(kind),
            Target::EnrolledCluster => bundle.enrollable_clusters().map(|(cluster, _)| cluster).collect(),
            Target::Purpose => bundle.federation.spec.data.purposes.iter().map(String::as_str).collect(),
        };
        if !known.contains(&reference.name.as_str()) && !problems.is_full() {
            report_unknown(reference, known, problems);
        }
    }
}

/// Reads one document of a test file.
pub(crate) fn read_file(
    node: &Node,
    file: &str,
    bundle: &Bundle,
    reader: &mut FieldReader<'_, '_>,
    scenarios: &mut Vec<Scenario>,
) {
    reader.label = format!("this {TEST_KIND}");
    let Some(mut fields) = Fields::open(node, "", reader) else {
        return;
    };
    check_api_version(&mut fields, reader);
    if let Some((path, node)) = fields.required("kind", reader) {
        reader.word(&path, node, &[(TEST_KIND, ())]);
    }
    let given = fields.optional("given", reader).and_then(|(path, node)| Given::read(&path, node, reader));
    let given = given.unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    if let Some((path, node)) = fields.required("scenarios", reader) {
        reader.require_items(&path, node, "add a scenario: `- name: …`");
        let label = reader.label.clone();
        let read = reader.list(&path, node, |reader, path, node| {
            reader.label.clone_from(&label);
            read_scenario(path, node, &Context { file, given: &given, bundle }, &mut names, reader)
        });
        reader.label = label;
        scenarios.extend(read);
    }
    fields.finish(reader);
}

/// What the scenarios of a file share.
struct Context<'c> {
    file: &'c str,
    given: &'c Given,
    bundle: &'c Bundle,
}

fn read_scenario(
    path: &str,
    node: &Node,
    context: &Context<'_>,
    names: &mut Vec<String>,
    reader: &mut FieldReader<'_, '_>,
) -> Option<Scenario> {
    let mut fields = Fields::open(node, path, reader)?;
    let (name, place) = read_name(&mut fields, names, reader)?;
    reader.label = format!("scenario `{}`", shorten(&name));
    let given_field = fields.optional("given", reader);
    let given = given_field.and_then(|(path, node)| Given::read(&path, node, reader)).unwrap_or_default();
    let given = context.given.with(given);
    check_names(&given, place, reader);
    let request_field = fields.optional("request", reader);
    let has_request = request_field.is_some();
    let request = request_field.and_then(|(path, node)| AskedRequest::read(&path, node, reader));
    let known = (context.bundle, given.leases.as_slice(), has_request);
    let expected =
        fields.required("expect", reader).and_then(|(path, node)| Expected::read(&path, node, known, reader));
    fields.finish(reader);
    if given.now_ms.is_none() {
        let message = format!("{} has no time", reader.label);
        let remedy = "add `now: 2026-11-23T08:00:00Z` to `given` of the file or of the scenario";
        reader.problems.at(place, ProblemCode::MissingField, message, remedy);
    }
    if has_request && request.is_none() {
        return None;
    }
    Some(Scenario {
        file: context.file.to_owned(),
        line: place.line,
        name,
        now_ms: given.now_ms?,
        clusters: given.clusters,
        leases: given.leases,
        waiting: given.waiting,
        request,
        expected: expected?,
    })
}

fn read_name(
    fields: &mut Fields<'_>,
    names: &mut Vec<String>,
    reader: &mut FieldReader<'_, '_>,
) -> Option<(String, Place)> {
    let (path, node) = fields.required("name", reader)?;
    let name = reader.text(&path, node)?;
    if name.is_empty() || name.contains('\n') || name.len() > MAX_TEXT_CHARS {
        let message = format!("`{path}` of {} is empty or has several lines", reader.label);
        reader.problems.at(node.place, ProblemCode::InvalidName, message, "describe the scenario on one line");
        return None;
    }
    if names.contains(&name) {
        let message = format!("two scenarios of this file are named `{}`", shorten(&name));
        reader.problems.at(node.place, ProblemCode::DuplicateName, message, "rename one of them");
    }
    names.push(name.clone());
    Some((name, node.place))
}

/// Leases and clusters of a scenario have distinct names.
fn check_names(given: &Given, place: Place, reader: &mut FieldReader<'_, '_>) {
    let leases = given.leases.iter().map(|lease| ("lease", lease.name.as_str()));
    let clusters = given.clusters.iter().map(|cluster| (Kind::Cluster.as_str(), cluster.name.as_str()));
    let mut seen = std::collections::BTreeSet::new();
    for (what, name) in leases.chain(clusters) {
        if !seen.insert((what, name)) {
            let message = format!("{} has {what} `{name}` twice", reader.label);
            reader.problems.at(place, ProblemCode::DuplicateName, message, "remove one of them");
        }
    }
}
