//! The repository of a policy that its owners signed, and a commit that nobody did.

use std::path::Path;

use anyhow::{Context as _, Result};
use comity_proto::v1;
use comity_proto::v1::policy_history_part::Part;
use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError, visit_objects};
use comity_testkit::SignedGit;

use super::{DONOR_CLUSTER, ORIGIN_CLUSTER};

/// Folder of the policy within the repository.
pub(crate) const POLICY_FOLDER: &str = "policy";
/// A tenant whom the donor lent to by the first commit, and does not by the second.
pub(crate) const FORMER_TENANT: &str = "guests";
/// A tenant whom only the forged commit knows.
pub(crate) const FORGED_TENANT: &str = "thief";
/// A dataset that stays with the borrower.
pub(crate) const KEPT_DATASET: &str = "clinical/scans";
const MAINTAINER: &str = "spiffe://t.example/user/ingrid";

/// The repository.
#[derive(Debug)]
pub(crate) struct SignedHistory {
    repository: SignedGit,
    /// The commit that the donor pins.
    pub(crate) first: String,
    /// A later one, with the signature of the donor's institution.
    pub(crate) second: String,
    /// One after that, by which the donor would lend to the thief. Nobody signed it.
    pub(crate) forged: String,
}

impl SignedHistory {
    /// Makes the repository in a directory.
    ///
    /// # Errors
    /// When git or ssh-keygen fails.
    pub(crate) fn create(home: &Path, borrower: &str, lender: &str) -> Result<Self> {
        let repository = SignedGit::init(home, &["ingrid", "lender"])?;
        let mut history = Self { repository, first: String::new(), second: String::new(), forged: String::new() };
        for (file, text) in history.documents(borrower, lender)? {
            history.write(file, &text)?;
        }
        history.first = history.commit(Some("ingrid"))?;
        history.write("cluster.yaml", &cluster(lender, "poly-ml"))?;
        history.second = history.commit(Some("lender"))?;
        history.write("cluster.yaml", &cluster(lender, &format!("poly-ml, {FORGED_TENANT}")))?;
        history.write("thief.yaml", &tenant(FORGED_TENANT, borrower))?;
        history.forged = history.commit(None)?;
        Ok(history)
    }

    fn documents(&self, borrower: &str, lender: &str) -> Result<Vec<(&'static str, String)>> {
        let federation = format!(
            "trustDomain: t.example, maintainers: [{MAINTAINER}], signatures: {{required: true, maintainersNeeded: 1}}, \
             commitKeys: [{{maintainer: {MAINTAINER}, key: {}}}]",
            self.repository.key("ingrid")?
        );
        let member = |name: &str, cluster: &str, more: &str| {
            document("Institution", name, &format!("displayName: X, contact: a@x, clusters: [{cluster}]{more}"))
        };
        let keys = format!(", commitKeys: [{{key: {}}}]", self.repository.key("lender")?);
        Ok(vec![
            ("federation.yaml", document("Federation", "f", &federation)),
            ("borrower.yaml", member(borrower, ORIGIN_CLUSTER, "")),
            ("lender.yaml", member(lender, DONOR_CLUSTER, &keys)),
            ("class.yaml", document("GpuClass", "frontier", "selector: device.memoryMiB >= 80000, rank: 1")),
            ("cluster.yaml", cluster(lender, &format!("poly-ml, {FORMER_TENANT}"))),
            ("dataset.yaml", document("Dataset", KEPT_DATASET, &format!("institution: {borrower}"))),
            ("tenant.yaml", tenant("poly-ml", borrower)),
            ("guests.yaml", tenant(FORMER_TENANT, borrower)),
            (
                "agreement.yaml",
                document("Agreement", "a", &format!("parties: [{borrower}, {lender}], classes: [frontier]")),
            ),
        ])
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        self.repository.write(&format!("{POLICY_FOLDER}/{file}"), text)
    }

    fn commit(&self, signer: Option<&str>) -> Result<String> {
        self.repository.commit(signer, "policy")
    }

    /// What a broker shows whose commit in force is `head`.
    ///
    /// # Errors
    /// When the repository lacks an object.
    pub(crate) fn parts(&self, verified: &str, head: &str) -> Result<Vec<v1::PolicyHistoryPart>> {
        let from = Some(verified).filter(|text| !text.is_empty()).map(str::parse::<ObjectId>).transpose()?;
        let first = v1::PolicyHead { commit: head.to_owned(), folder: POLICY_FOLDER.to_owned() };
        let mut parts = vec![v1::PolicyHistoryPart { part: Some(Part::Head(first)) }];
        let mut take = |kind: ObjectKind, content: &[u8]| {
            let kind = match kind {
                ObjectKind::Commit => v1::GitObjectKind::Commit,
                ObjectKind::Tree => v1::GitObjectKind::Tree,
                ObjectKind::Blob | ObjectKind::Tag => v1::GitObjectKind::Blob,
            };
            let object = v1::GitObject { kind: kind.into(), content: content.to_vec() };
            parts.push(v1::PolicyHistoryPart { part: Some(Part::Object(object)) });
            Ok(())
        };
        let folder = POLICY_FOLDER.parse().context("a folder")?;
        visit_objects(self, &folder, from, head.parse()?, &mut take)?;
        Ok(parts)
    }
}

impl ObjectStore for SignedHistory {
    fn object(&self, id: ObjectId, kind: ObjectKind, _limit: usize) -> Result<Vec<u8>, StoreError> {
        let found = self.repository.object(kind.as_str(), &id.to_string());
        found.map_err(|error| StoreError::Unreadable(error.to_string()))?.ok_or(StoreError::Missing { kind, id })
    }
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

fn cluster(lender: &str, tenants: &str) -> String {
    let spec = format!(
        "institution: {lender}, delivery: [namespace], lends: [{{classes: [frontier], to: {{tenants: [{tenants}]}}}}]"
    );
    document("Cluster", DONOR_CLUSTER, &spec)
}

fn tenant(name: &str, institution: &str) -> String {
    let member = format!("{{id: {MAINTAINER}, role: submitter}}");
    let spec =
        format!("institution: {institution}, members: [{member}], classes: [frontier], clusters: [{ORIGIN_CLUSTER}]");
    document("Tenant", name, &spec)
}
