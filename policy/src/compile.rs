//! Compiles source files to a bundle: checks sizes, reads every document, checks the documents against each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_types::{find_secret, is_printable, is_printable_text, is_steering};
use sha2::{Digest, Sha256};

use crate::bundle::cohorts::CohortIndex;
use crate::bundle::{Bundle, index_agreements, index_reservations};
use crate::documents::QuotaSubject;
use crate::limits::{MAX_BUNDLE_BYTES, MAX_DOCUMENTS, MAX_FILE_BYTES, MAX_FILES};
use crate::problem::{Place, Problem, ProblemCode, Problems, render_problems, shorten};
use crate::reading::yaml::{Node, ParsedDocument, Value, parse_documents};
use crate::roles::Roles;
use crate::source::{BundleSource, SourceFile};

use draft::Draft;
use read_document::read_document;
use resolve_zones::{ZoneSource, resolve_zones};

pub(crate) use cross_check::report_unknown;
pub(crate) use read_document::check_api_version;

mod cross_check;
mod draft;
mod read_document;
mod resolve_zones;

/// U+FEFF, which tells the byte order of UTF-16, and nothing in UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Bytes of a file's path.
const MAX_PATH_BYTES: usize = 255;

/// Bytes of a commit id.
const MAX_COMMIT_BYTES: usize = 128;

/// A bundle that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy bundle does not compile\n{}", render_problems(.problems))]
pub struct InvalidBundle {
    /// All problems, by file and line.
    pub problems: Vec<Problem>,
}

/// Compiles files that come from no Git commit; see [`Bundle::compile`].
///
/// # Errors
/// All problems of all files, by file and line.
pub fn load(files: Vec<SourceFile>) -> Result<Bundle, Vec<Problem>> {
    compile(BundleSource::of_files(files), ZoneSource::LookUp)
}

impl Bundle {
    /// Compiles a bundle. The order of the files does not matter. Looks time zones up in this program's database,
    /// unless `source` has them; [`source`](Self::source) has all of them.
    ///
    /// # Errors
    /// All problems of all files, by file and line.
    pub fn compile(source: &BundleSource) -> Result<Self, Vec<Problem>> {
        compile(source.clone(), ZoneSource::LookUp)
    }

    /// Compiles a bundle that was admitted, and so has the offsets of its time zones: a database of one's own would give
    /// another bundle on brokers of another release. For the same reason nothing is taken for a secret here.
    ///
    /// # Errors
    /// All problems of all files, by file and line.
    pub fn compile_replicated(source: &BundleSource) -> Result<Self, Vec<Problem>> {
        compile(source.clone(), ZoneSource::Given)
    }
}

impl TryFrom<BundleSource> for Bundle {
    type Error = InvalidBundle;

    fn try_from(source: BundleSource) -> Result<Self, InvalidBundle> {
        compile(source, ZoneSource::Given).map_err(|problems| InvalidBundle { problems })
    }
}

/// Drops the invisible mark with which editors on Windows begin a file.
pub(crate) fn drop_byte_order_mark(file: &mut SourceFile) {
    if let Some(text) = file.text.strip_prefix(BYTE_ORDER_MARK) {
        file.text = text.to_owned();
    }
}

fn compile(mut source: BundleSource, zones: ZoneSource) -> Result<Bundle, Vec<Problem>> {
    source.files.iter_mut().for_each(drop_byte_order_mark);
    source.files.sort();
    let (draft, zones, problems) = {
        let mut problems = Problems::new(&source.files);
        check_files(&source, &mut problems);
        if zones == ZoneSource::LookUp {
            refuse_secrets(&source, &mut problems);
        }
        if !problems.is_empty() {
            return Err(problems.into_sorted());
        }
        let mut draft = Draft::default();
        let mut count = 0;
        for (index, file) in source.files.iter().enumerate() {
            for document in parse_documents(index, &file.text, &mut problems) {
                count += 1;
                if count > MAX_DOCUMENTS {
                    // What else is wrong is not known: references may lead to what was not read.
                    let mut problems = Problems::new(&source.files);
                    let message = format!("the bundle has more than {MAX_DOCUMENTS} documents");
                    problems.whole(&file.path, ProblemCode::TooLarge, message, "is this the right directory?");
                    return Err(problems.into_sorted());
                }
                match document {
                    ParsedDocument::Valid(node) => {
                        if zones == ZoneSource::LookUp {
                            refuse_escaped_secrets(&file.text, &node, &mut problems);
                        }
                        read_document(&node, &mut draft, &mut problems);
                    }
                    ParsedDocument::Invalid { kind, name } => draft.record_invalid(kind.as_deref(), name),
                }
            }
        }
        if problems.has(ProblemCode::Secret) {
            // The lines that others show may have it.
            return Err(problems.into_sorted().into_iter().filter(|it| it.code == ProblemCode::Secret).collect());
        }
        cross_check::check(&draft, &mut problems);
        let zones = resolve_zones(&draft.zones, &source.zones, zones, &mut problems);
        (draft, zones, problems.into_sorted())
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    source.zones = zones;
    assemble(source, draft)
}

fn check_files(source: &BundleSource, problems: &mut Problems<'_>) {
    let files = &source.files;
    if files.len() > MAX_FILES {
        let message = format!("the bundle has {} files; at most {MAX_FILES} are allowed", files.len());
        problems.whole(
            "",
            ProblemCode::TooLarge,
            message,
            "put several documents into one file, with `---` between them",
        );
    }
    let total: usize = files.iter().map(|file| file.text.len()).sum();
    if total > MAX_BUNDLE_BYTES {
        let message = format!("the bundle has {total} bytes; at most {MAX_BUNDLE_BYTES} are allowed");
        problems.whole("", ProblemCode::TooLarge, message, "is this the right directory?");
    }
    if source.commit.as_ref().is_some_and(|commit| commit.len() > MAX_COMMIT_BYTES) {
        problems.whole(
            "",
            ProblemCode::TooLarge,
            format!("the commit id is longer than {MAX_COMMIT_BYTES} bytes"),
            "give the hash of the commit",
        );
    }
    for (index, file) in files.iter().enumerate() {
        if file.text.len() > MAX_FILE_BYTES {
            let message = format!("the file has {} bytes; at most {MAX_FILE_BYTES} are allowed", file.text.len());
            problems.whole(&shorten(&file.path), ProblemCode::TooLarge, message, "split it");
        }
        if file.path.is_empty() || file.path.len() > MAX_PATH_BYTES || !is_printable(&file.path) {
            let message = format!(
                "a file's path is empty, longer than {MAX_PATH_BYTES} bytes or has control or invisible characters"
            );
            problems.whole(&shorten(&file.path), ProblemCode::InvalidName, message, "");
        }
        if let Some((line, column)) = first_control(&file.text) {
            let place = Place { file: index, line, column, width: 1 };
            let message = "the text has a control or invisible character, which would mislead who reads it";
            problems.at(place, ProblemCode::NotText, message, "delete the character");
        }
        if index > 0 && files[index - 1].path == file.path {
            problems.whole(&file.path, ProblemCode::DuplicateName, "two files have this path", "");
        }
    }
}

/// What looks like a secret. The next release may know more of them, and must still load what this one admitted.
fn refuse_secrets(source: &BundleSource, problems: &mut Problems<'_>) {
    for (index, file) in source.files.iter().enumerate() {
        if let Some((line, noun)) = find_secret(&file.text) {
            let line = u32::try_from(line).unwrap_or(u32::MAX);
            report_secret(Place { file: index, line, column: 1, width: 1 }, noun, problems);
        }
    }
}

/// What looks like a secret once the escapes of YAML are read, or its folded lines joined. `source` is the file's text.
fn refuse_escaped_secrets(source: &str, node: &Node, problems: &mut Problems<'_>) {
    match &node.value {
        Value::Scalar { text, byte_start, .. } => {
            let written = source.get(*byte_start..).unwrap_or_default();
            let is_as_written = [0, 1].iter().any(|quote| written.get(*quote..).is_some_and(|it| it.starts_with(text)));
            if !is_as_written && let Some((_, noun)) = find_secret(text) {
                report_secret(node.place, noun, problems);
            }
        }
        Value::List(nodes) => nodes.iter().for_each(|node| refuse_escaped_secrets(source, node, problems)),
        Value::Map(entries) => entries.iter().for_each(|(_, _, node)| refuse_escaped_secrets(source, node, problems)),
    }
}

fn report_secret(place: Place, noun: &str, problems: &mut Problems<'_>) {
    let message = format!("the line has {noun}, and everybody who may read the policy reads it");
    problems.at(place, ProblemCode::Secret, message, "delete it, and replace it wherever it is valid");
}

/// Line and column, from 1, of the first character that is neither shown nor the end of a line.
fn first_control(text: &str) -> Option<(u32, u32)> {
    if is_printable_text(text) {
        return None;
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    text.lines().enumerate().find_map(|(line, shown)| {
        let column = shown.chars().position(|c| c != '\t' && is_steering(c))?;
        Some((narrow(line + 1), narrow(column + 1)))
    })
}

/// Builds the bundle and its indexes from a valid draft.
fn assemble(source: BundleSource, draft: Draft) -> Result<Bundle, Vec<Problem>> {
    let Some(federation) = draft.federations.into_iter().next() else {
        let mut problems = Problems::new(&source.files);
        cross_check::report_missing_federation(&mut problems);
        return Err(problems.into_sorted());
    };
    let institution_by_cluster: BTreeMap<String, String> = draft
        .institutions
        .values()
        .flat_map(|institution| {
            institution.spec.clusters.iter().map(|cluster| (cluster.clone(), institution.name.clone()))
        })
        .collect();
    let mut roles: BTreeMap<String, Roles> = BTreeMap::new();
    for user in &federation.spec.maintainers {
        roles.entry(user.clone()).or_default().federation_admin = true;
    }
    for user in &federation.spec.broker_operators {
        roles.entry(user.clone()).or_default().broker_operator = true;
    }
    for user in &federation.spec.planners {
        roles.entry(user.clone()).or_default().planner = true;
    }
    for institution in draft.institutions.values() {
        for user in &institution.spec.operators {
            roles.entry(user.clone()).or_default().institutions_operated.insert(institution.name.clone());
        }
    }
    let mut quotas_by_tenant: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for tenant in draft.tenants.values() {
        for (user, role) in &tenant.spec.members {
            roles.entry(user.clone()).or_default().tenants.insert(tenant.name.clone(), *role);
        }
        let quotas = draft.quotas.values().filter(|quota| match &quota.spec.subject {
            QuotaSubject::Tenant(name) => *name == tenant.name,
            QuotaSubject::Institution(name) => *name == tenant.spec.institution,
        });
        quotas_by_tenant.insert(tenant.name.clone(), quotas.map(|quota| quota.name.clone()).collect());
    }
    let (institution_numbers, agreements_by_borrower) = index_agreements(&draft.institutions, &draft.agreements);
    let reservations_by_cluster = index_reservations(&draft.reservations);
    let cohorts = Arc::new(CohortIndex::of(&draft.quotas));
    let mut classes_by_rank: Vec<String> = draft.classes.keys().cloned().collect();
    classes_by_rank.sort_by_key(|name| std::cmp::Reverse(draft.classes.get(name).map(|class| class.spec.rank)));
    Ok(Bundle {
        hash: hash_files(&source.files),
        source,
        federation,
        institutions: draft.institutions,
        clusters: draft.clusters,
        tenants: draft.tenants,
        classes: draft.classes,
        quotas: draft.quotas,
        agreements: draft.agreements,
        priorities: draft.priorities,
        templates: draft.templates,
        schedules: draft.schedules,
        reservations: draft.reservations,
        rules: draft.rules,
        datasets: draft.datasets,
        institution_by_cluster,
        roles,
        quotas_by_tenant,
        reservations_by_cluster,
        cohorts,
        agreements_by_borrower,
        institution_numbers,
        classes_by_rank,
    })
}

/// SHA-256 of the files in hex. Length prefixes keep two sets of files from having the same encoding.
fn hash_files(files: &[SourceFile]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"comity-policy-bundle-v1\0");
    for file in files {
        for part in [&file.path, &file.text] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hex::encode(hasher.finalize())
}
