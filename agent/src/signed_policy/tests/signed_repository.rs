//! A repository with the signed policy of two institutions: `poly` borrows at `campus`, `centre` lends at `centre-main`.

use std::fs;
use std::process::{Command, Output};

use comity_proto::v1;
use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError, visit_objects};
use tempfile::TempDir;

use crate::signed_policy::shown_objects::ShownObjects;
use crate::signed_policy::verify::ShownHistory;

pub(crate) const ORIGIN: &str = "campus";
pub(crate) const DONOR: &str = "centre-main";
/// 2026-12-01.
pub(crate) const NOW_MS: u64 = 1_796_083_200_000;
const FOLDER: &str = "policy";

pub(crate) struct SignedRepository(TempDir);

impl SignedRepository {
    pub(crate) fn new() -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        for person in ["ingrid", "poly", "centre"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", person, "-f"])
                .arg(repository.0.path().join(person))
                .status();
            assert!(made.unwrap().success());
        }
        fs::create_dir(repository.0.path().join(FOLDER)).unwrap();
        repository.git(&["init", "--quiet", "--initial-branch", "main"]);
        let key = |person: &str| {
            fs::read_to_string(repository.0.path().join(format!("{person}.pub"))).unwrap().trim().to_owned()
        };
        let ingrid = "spiffe://t.example/user/ingrid";
        let member = |name: &str, cluster: &str| {
            let keys = format!("commitKeys: [{{key: {}}}]", key(name));
            document("Institution", name, &format!("displayName: X, contact: a@x, clusters: [{cluster}], {keys}"))
        };
        let federation = format!(
            "trustDomain: t.example, maintainers: [{ingrid}], signatures: {{required: true, maintainersNeeded: 1}}, \
             commitKeys: [{{maintainer: {ingrid}, key: {}}}]",
            key("ingrid")
        );
        for (file, text) in [
            ("federation.yaml", document("Federation", "f", &federation)),
            ("poly.yaml", member("poly", ORIGIN)),
            ("centre.yaml", member("centre", DONOR)),
            ("class.yaml", document("GpuClass", "large", "selector: device.memoryMiB > 1000, rank: 1")),
            (
                "cluster.yaml",
                document(
                    "Cluster",
                    DONOR,
                    "institution: centre, delivery: [namespace], maxLentGpus: 4, maxLeaseDuration: 8h, lends: [{classes: [large]}]",
                ),
            ),
            (
                "tenant.yaml",
                document(
                    "Tenant",
                    "ml",
                    &format!(
                        "institution: poly, members: [{{id: {ingrid}, role: submitter}}], classes: [large], clusters: [{ORIGIN}]"
                    ),
                ),
            ),
            ("agreement.yaml", document("Agreement", "both", "parties: [poly, centre], classes: [large]")),
        ] {
            fs::write(repository.0.path().join(FOLDER).join(file), text).unwrap();
        }
        repository.commit(Some("ingrid"), "first");
        repository
    }

    fn try_git(&self, arguments: &[&str]) -> Output {
        Command::new("git")
            .current_dir(self.0.path())
            .env("HOME", self.0.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["-c", "user.name=A", "-c", "user.email=a@x", "-c", "gpg.format=ssh"])
            .args(arguments)
            .output()
            .unwrap()
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = self.try_git(arguments);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.0.path().join(FOLDER).join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}: {text}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Commits the policy, signed by somebody's key or not at all.
    pub(crate) fn commit(&self, signer: Option<&str>, message: &str) -> ObjectId {
        let sign = signer.map(|signer| format!("-S{}", self.0.path().join(signer).display()));
        let mut arguments = vec!["commit", "--quiet", "--allow-empty", "-m", message];
        arguments.extend(sign.as_deref());
        self.git(&["add", FOLDER]);
        self.git(&arguments);
        self.head()
    }

    pub(crate) fn head(&self) -> ObjectId {
        self.git(&["rev-parse", "HEAD"]).parse().unwrap()
    }

    /// What an honest broker shows.
    pub(crate) fn shown(&self, from: Option<ObjectId>, head: ObjectId) -> ShownHistory {
        self.shown_without(from, head, ObjectId::from_bytes(&[0; 20]).unwrap())
    }

    /// As [`shown`](Self::shown), without one object.
    pub(crate) fn shown_without(&self, from: Option<ObjectId>, head: ObjectId, left_out: ObjectId) -> ShownHistory {
        let (folder, mut objects) = (FOLDER.parse().unwrap(), ShownObjects::default());
        let mut take = |kind: ObjectKind, content: &[u8]| {
            if ObjectId::of(kind, content) != Some(left_out) {
                let kind = match kind {
                    ObjectKind::Commit => v1::GitObjectKind::Commit,
                    ObjectKind::Tree => v1::GitObjectKind::Tree,
                    _ => v1::GitObjectKind::Blob,
                };
                objects.take(v1::GitObject { kind: kind.into(), content: content.to_vec() }).unwrap();
            }
            Ok(())
        };
        visit_objects(self, &folder, from, head, &mut take).unwrap();
        ShownHistory { head, folder, objects }
    }
}

impl ObjectStore for SignedRepository {
    fn object(&self, id: ObjectId, kind: ObjectKind, _limit: usize) -> Result<Vec<u8>, StoreError> {
        let output = self.try_git(&["cat-file", kind.as_str(), &id.to_string()]);
        if output.status.success() { Ok(output.stdout) } else { Err(StoreError::Missing { kind, id }) }
    }
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}
