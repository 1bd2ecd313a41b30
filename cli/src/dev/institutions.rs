//! The example policy with institutions' signing keys that this machine generates.

use std::collections::BTreeMap;
use std::path::Path;

use comity_agent::keys::pins::InstitutionPin;
use comity_policy::{Bundle, BundleSource, SourceFile};
use comity_runtime::{IdentityKey, IdentityPublicKey, SystemEntropy, atomic_file};

use crate::failure::Failure;

/// Embeds files of `policy/examples`, so that an installed `comity` needs no checkout.
macro_rules! examples {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../policy/examples/", $path)))),*]
    };
}

const POLICY_FILES: [(&str, &str); 19] = examples![
    "agreements/bilateral.yaml",
    "agreements/research-alliance.yaml",
    "classes.yaml",
    "clusters/hospital-research.yaml",
    "clusters/ncc-main.yaml",
    "clusters/physics-farm.yaml",
    "clusters/polytech-campus.yaml",
    "clusters/startup-pc.yaml",
    "federation.yaml",
    "institutions/hospital-lab.yaml",
    "institutions/national-centre.yaml",
    "institutions/physics-institute.yaml",
    "institutions/polytechnic.yaml",
    "institutions/startup.yaml",
    "priorities.yaml",
    "rules.yaml",
    "templates.yaml",
    "tenants/others.yaml",
    "tenants/polytechnic.yaml",
];
const KEY_PREFIX: &str = "ed25519:";

/// The policy to apply, and the institutions' keys.
#[derive(Debug)]
pub(super) struct Institutions {
    /// All policy files.
    pub(super) files: Vec<SourceFile>,
    /// The federation's trust domain.
    pub(super) trust_domain: String,
    /// Signing keys by institution.
    keys: BTreeMap<String, IdentityKey>,
    /// Institution by cluster.
    owners: BTreeMap<String, String>,
}

impl Institutions {
    /// Loads or generates the institutions' keys in a directory, and puts them into the example policy.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::configuration(format!("cannot load or generate the institutions' keys: {error}"))
                .field("--state", dir.display())
        };
        atomic_file::create_private_dir(dir).map_err(|error| bad(&error))?;
        let source = BundleSource::of_files(example_files());
        let bundle = compile(&source)?;
        let mut keys = BTreeMap::new();
        for name in bundle.institutions.keys() {
            let key = IdentityKey::load_or_generate(&dir.join(format!("{name}.key")), &SystemEntropy);
            keys.insert(name.clone(), key.map_err(|error| bad(&error))?);
        }
        let mut files = source.files;
        for file in files.iter_mut().filter(|file| file.path.starts_with("institutions/")) {
            let owner = bundle.institutions.iter().find(|(_, document)| document.location.file == file.path);
            let key = owner.and_then(|(name, _)| keys.get(name));
            if let Some(key) = key {
                file.text = with_signing_key(&file.text, &key.public());
            }
        }
        compile(&BundleSource::of_files(files.clone()))?;
        Ok(Self {
            files,
            trust_domain: bundle.federation.spec.trust_domain.clone(),
            keys,
            owners: bundle
                .enrollable_clusters()
                .map(|(cluster, owner)| (cluster.to_owned(), owner.to_owned()))
                .collect(),
        })
    }

    /// The institution that owns a cluster, with its key.
    pub(super) fn owner(&self, cluster: &str) -> Option<(&str, &IdentityKey)> {
        let owner = self.owners.get(cluster)?;
        Some((owner, self.keys.get(owner)?))
    }

    /// Institutions with their keys and clusters, as an administrator pins them in an agent's configuration.
    pub(super) fn pins(&self) -> BTreeMap<String, InstitutionPin> {
        let pin = |(name, key): (&String, &IdentityKey)| {
            let own = self.owners.iter().filter(|(_, owner)| *owner == name);
            let clusters = own.map(|(cluster, _)| cluster.clone()).collect();
            (name.clone(), InstitutionPin { keys: vec![key.public()], clusters })
        };
        self.keys.iter().map(pin).collect()
    }
}

fn example_files() -> Vec<SourceFile> {
    POLICY_FILES.iter().map(|(path, text)| SourceFile { path: (*path).to_owned(), text: (*text).to_owned() }).collect()
}

fn compile(source: &BundleSource) -> Result<Bundle, Failure> {
    Bundle::compile(source).map_err(|problems| {
        Failure::refused(
            "bad-policy",
            format!("the example policy is invalid\n{}", comity_policy::render_problems(&problems)),
        )
    })
}

/// Replaces the signing keys of an institution's document with one key.
fn with_signing_key(text: &str, key: &IdentityPublicKey) -> String {
    let mut replaced = false;
    let mut lines = String::new();
    for line in text.lines() {
        match line.split_once(KEY_PREFIX) {
            Some((before, _)) if before.trim() == "-" => {
                if !replaced {
                    lines.push_str(&format!("{before}{key}\n"));
                }
                replaced = true;
            }
            _ => {
                lines.push_str(line);
                lines.push('\n');
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_institution_signs_with_a_key_of_this_machine() {
        let dir = tempfile::tempdir().expect("made");
        let institutions = Institutions::open(dir.path()).expect("opened");
        let bundle = comity_policy::load(institutions.files.clone()).expect("still good");
        assert_eq!(bundle.institutions.len(), 5);
        for (name, pin) in institutions.pins() {
            let declared = &bundle.institutions[&name].spec.signing_keys;
            assert_eq!(declared, &pin.keys.iter().map(|key| *key.as_bytes()).collect::<Vec<_>>(), "{name}");
        }
        assert!(institutions.pins()["national-centre"].clusters.contains("ncc-main"));
        let again = Institutions::open(dir.path()).expect("opened again");
        assert_eq!(again.pins(), institutions.pins());
        assert_eq!(institutions.owner("ncc-main").map(|(name, _)| name), Some("national-centre"));
    }

    #[test]
    fn the_examples_in_this_binary_are_those_of_the_checkout() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples");
        let (there, here) = (comity_policy::read_directory(&examples).expect("read"), example_files());
        let paths = |files: &[SourceFile]| files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(paths(&here), paths(&there), "list them in POLICY_FILES");
        assert_eq!(here, there);
    }
}
