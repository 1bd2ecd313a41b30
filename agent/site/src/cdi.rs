//! The CDI devices of this host (Container Device Interface 0.5 and later).

use std::collections::BTreeSet;
use std::path::Path;

use comity_runtime::atomic_file;
use serde::Deserialize;

/// Folders of specifications. podman reads all of them.
const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const MAX_SPEC_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
struct Specification {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
}

/// Names of all devices of a kind. Files that cannot be read have none: podman skips them, too.
pub(crate) fn names(kind: &str) -> BTreeSet<String> {
    let files = FOLDERS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut names = BTreeSet::new();
    for path in files.map(|entry| entry.path()).filter(|path| is_specification(path)) {
        let text =
            atomic_file::read_bounded(&path, MAX_SPEC_BYTES).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match text.map(|text| parse(&text)) {
            Some(Ok(found)) if found.kind == kind => names.extend(found.devices.into_iter().map(|device| device.name)),
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::warn!(path = %path.display(), error, "a CDI specification cannot be read"),
            None => tracing::warn!(path = %path.display(), "a CDI specification cannot be read"),
        }
    }
    names
}

fn is_specification(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("json" | "yaml" | "yml"))
}

/// JSON is YAML.
fn parse(text: &str) -> Result<Specification, String> {
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn specifications_are_read_in_both_forms() {
        let yaml = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  env: [A=b]\ndevices:\n- name: \"0\"\n  \
            containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n- name: all\n";
        let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0"},{"name":"all"}]}"#;
        for text in [yaml, json] {
            let read = parse(text).unwrap();
            let names: Vec<&str> = read.devices.iter().map(|device| device.name.as_str()).collect();
            assert_eq!((read.kind.as_str(), names), ("nvidia.com/gpu", vec!["0", "all"]), "{text}");
        }
        assert!(parse("devices: 3").is_err());
    }
}
