//! A repository with the signed policy of two institutions: `poly` borrows at `campus`, `centre` lends at `centre-main`.

use comity_proto::v1;
use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError, visit_objects};
use comity_testkit::SignedGit;
use tempfile::TempDir;

use crate::signed_policy::shown_objects::ShownObjects;
use crate::signed_policy::verify::ShownHistory;

pub(crate) const ORIGIN: &str = "campus";
pub(crate) const DONOR: &str = "centre-main";
/// 2026-12-01.
pub(crate) const NOW_MS: u64 = 1_796_083_200_000;
const FOLDER: &str = "policy";

pub(crate) struct SignedRepository {
    repository: SignedGit,
    _home: TempDir,
}

impl SignedRepository {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let repository = SignedGit::init(home.path(), &["ingrid", "poly", "centre"]).unwrap();
        let key = |person: &str| repository.key(person).unwrap();
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
            repository.write(&format!("{FOLDER}/{file}"), &text).unwrap();
        }
        repository.commit(Some("ingrid"), "first").unwrap();
        Self { repository, _home: home }
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        self.repository.git(arguments).unwrap()
    }

    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        self.repository.edit(&format!("{FOLDER}/{file}"), from, to).unwrap();
    }

    /// Commits the policy, signed by somebody's key or not at all.
    pub(crate) fn commit(&self, signer: Option<&str>, message: &str) -> ObjectId {
        self.repository.commit(signer, message).unwrap().parse().unwrap()
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
        let found = self.repository.object(kind.as_str(), &id.to_string()).unwrap();
        found.ok_or(StoreError::Missing { kind, id })
    }
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}
