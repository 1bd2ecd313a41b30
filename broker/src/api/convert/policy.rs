//! Converts policy bundles and their problems.

use std::collections::BTreeSet;

use comity_core::Refusal;
use comity_core::explain::KeptGpus;
use comity_policy::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES};
use comity_policy::{BundleSource, Problem, SourceFile};
use comity_proto::v1;

use crate::api::convert::required;

/// Characters of a path within a bundle.
const MAX_PATH_BYTES: usize = 512;
/// Characters of a commit id: SHA-256 in hex.
const MAX_COMMIT_BYTES: usize = 64;

/// What a reservation keeps at one cluster.
pub fn reservation_to_proto(kept: KeptGpus) -> v1::Reservation {
    let (window_start_ms, window_end_ms) = kept.window.map_or((0, 0), |(start, end)| (start.0, end.0));
    v1::Reservation {
        name: kept.reservation.name,
        cluster: kept.donor.to_string(),
        tenant: kept.tenant,
        gpu_class: kept.class,
        gpu_milli: kept.gpu_milli,
        window_start_ms,
        window_end_ms,
        open: kept.is_open,
        used_milli: kept.used_milli,
        held_milli: kept.held_milli,
        short_milli: kept.short_milli,
        file: kept.reservation.file,
        line: kept.reservation.line,
    }
}

/// Parses a bundle within size limits; the policy crate validates its contents.
pub fn source(bundle: Option<v1::PolicyBundle>) -> Result<BundleSource, Refusal> {
    let bundle = required(bundle, "bundle", "send the files of a policy directory")?;
    if bundle.files.is_empty() || bundle.files.len() > MAX_FILES {
        return Err(Refusal::invalid(
            "bundle.files",
            bundle.files.len(),
            "files are none or too many",
            format!("send 1 to {MAX_FILES}"),
        ));
    }
    let total: usize = bundle.files.iter().map(|file| file.text.len()).sum();
    if total > MAX_BUNDLE_BYTES {
        return Err(Refusal::invalid(
            "bundle",
            format!("{total} bytes"),
            "is too large",
            format!("send at most {MAX_BUNDLE_BYTES} bytes in all files together"),
        ));
    }
    if bundle.commit.len() > MAX_COMMIT_BYTES || !bundle.commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(Refusal::invalid(
            "bundle.commit",
            &bundle.commit,
            "is not a commit id",
            "send its hex digits, or nothing",
        ));
    }
    let mut files: Vec<SourceFile> = Vec::with_capacity(bundle.files.len());
    for (index, file) in bundle.files.into_iter().enumerate() {
        files.push(source_file(index, file)?);
    }
    files.sort();
    let folders = |file: &'_ SourceFile| -> Vec<String> {
        file.path.match_indices('/').map(|(at, _)| file.path[..at].to_owned()).collect()
    };
    let folders: BTreeSet<String> = files.iter().flat_map(folders).collect();
    if let Some(file) = files.iter().find(|file| folders.contains(&file.path)) {
        let remedy = "rename one of the two";
        return Err(Refusal::invalid("bundle.files.path", &file.path, "is both a file and a folder", remedy));
    }
    if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(Refusal::invalid("bundle.files.path", &pair[0].path, "comes twice", "send each file once"));
    }
    Ok(BundleSource {
        files,
        commit: Some(bundle.commit).filter(|commit| !commit.is_empty()),
        ..BundleSource::default()
    })
}

fn source_file(index: usize, file: v1::PolicyFile) -> Result<SourceFile, Refusal> {
    let field = |name: &str| format!("bundle.files[{index}].{name}");
    let path_is_plain = !file.path.starts_with('/')
        && file.path.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
        && !file.path.contains(['\\', '\0', '\n']);
    if file.path.len() > MAX_PATH_BYTES || !path_is_plain {
        return Err(Refusal::invalid(
            &field("path"),
            &file.path,
            "is not a path within the bundle",
            format!("use '/' between names, no name that begins with '.', at most {MAX_PATH_BYTES} bytes"),
        ));
    }
    if file.text.len() > MAX_FILE_BYTES {
        return Err(Refusal::invalid(
            &field("text"),
            format!("{} bytes", file.text.len()),
            "is too large",
            format!("split it: at most {MAX_FILE_BYTES} bytes a file"),
        ));
    }
    Ok(SourceFile { path: file.path, text: file.text })
}

/// Converts to the API message.
#[must_use]
pub fn source_to_proto(source: &BundleSource) -> v1::PolicyBundle {
    v1::PolicyBundle {
        files: source
            .files
            .iter()
            .map(|file| v1::PolicyFile { path: file.path.clone(), text: file.text.clone() })
            .collect(),
        commit: source.commit.clone().unwrap_or_default(),
    }
}

/// Converts to the API message.
#[must_use]
pub fn problems_to_proto(problems: &[Problem]) -> Vec<v1::PolicyProblem> {
    problems
        .iter()
        .map(|problem| v1::PolicyProblem {
            file: problem.file.clone(),
            line: problem.line,
            column: problem.column,
            code: problem.code.as_str().to_owned(),
            message: problem.message.clone(),
            remedy: problem.remedy.clone(),
            rendered: problem.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: Vec<(&str, String)>) -> v1::PolicyBundle {
        let files = files.into_iter().map(|(path, text)| v1::PolicyFile { path: path.to_owned(), text }).collect();
        v1::PolicyBundle { files, commit: String::new() }
    }

    #[test]
    fn bounds_and_paths() {
        let big = "x".repeat(MAX_FILE_BYTES + 1);
        let half = "x".repeat(MAX_FILE_BYTES);
        for (bad, field) in [
            (bundle(vec![]), "bundle.files"),
            (bundle(vec![("../a.yaml", String::new())]), "bundle.files[0].path"),
            (bundle(vec![("a.yaml", String::new()), ("/b", String::new())]), "bundle.files[1].path"),
            (bundle(vec![("a.yaml", big)]), "bundle.files[0].text"),
            (bundle(vec![("a", half.clone()), ("b", half.clone()), ("c", half)]), "bundle"),
            (bundle(vec![("a", String::new()), ("a", String::new())]), "bundle.files.path"),
            (v1::PolicyBundle { commit: "x y".to_owned(), ..bundle(vec![("a", String::new())]) }, "bundle.commit"),
        ] {
            assert_eq!(source(Some(bad)).expect_err(field).field, field);
        }
        assert_eq!(source(None).expect_err("none").field, "bundle");
        assert!(source(Some(bundle(vec![("a/b.yaml", "x".to_owned())]))).is_ok());
    }
}
