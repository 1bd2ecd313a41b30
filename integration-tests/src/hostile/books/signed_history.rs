//! The repository of a policy that its owners signed, and a commit that nobody did.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use comity_proto::v1;
use comity_proto::v1::policy_history_part::Part;
use comity_provenance::{ObjectId, ObjectKind, ObjectStore, StoreError, visit_objects};

use super::{DONOR_CLUSTER, ORIGIN_CLUSTER};

/// Folder of the policy within the repository.
pub(crate) const POLICY_FOLDER: &str = "policy";
/// A tenant whom the donor lent to by the first commit, and does not by the second.
pub(crate) const FORMER_TENANT: &str = "guests";
/// A tenant whom only the forged commit knows.
pub(crate) const FORGED_TENANT: &str = "thief";
const MAINTAINER: &str = "spiffe://t.example/user/ingrid";

/// The repository.
#[derive(Debug)]
pub(crate) struct SignedHistory {
    home: PathBuf,
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
        let home = home.to_owned();
        fs::create_dir_all(home.join(POLICY_FOLDER))?;
        for person in ["ingrid", "lender"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", person, "-f"])
                .arg(home.join(person))
                .status()?;
            ensure!(made.success(), "ssh-keygen failed");
        }
        let mut history = Self { home, first: String::new(), second: String::new(), forged: String::new() };
        history.git(&["init", "--quiet", "--initial-branch", "main"])?;
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
        let key = |person: &str| -> Result<String> {
            Ok(fs::read_to_string(self.home.join(format!("{person}.pub")))?.trim().to_owned())
        };
        let federation = format!(
            "trustDomain: t.example, maintainers: [{MAINTAINER}], signatures: {{required: true, maintainersNeeded: 1}}, \
             commitKeys: [{{maintainer: {MAINTAINER}, key: {}}}]",
            key("ingrid")?
        );
        let member = |name: &str, cluster: &str, more: &str| {
            document("Institution", name, &format!("displayName: X, contact: a@x, clusters: [{cluster}]{more}"))
        };
        let keys = format!(", commitKeys: [{{key: {}}}]", key("lender")?);
        Ok(vec![
            ("federation.yaml", document("Federation", "f", &federation)),
            ("borrower.yaml", member(borrower, ORIGIN_CLUSTER, "")),
            ("lender.yaml", member(lender, DONOR_CLUSTER, &keys)),
            ("class.yaml", document("GpuClass", "frontier", "selector: device.memoryMiB >= 80000, rank: 1")),
            ("cluster.yaml", cluster(lender, &format!("poly-ml, {FORMER_TENANT}"))),
            ("tenant.yaml", tenant("poly-ml", borrower)),
            ("guests.yaml", tenant(FORMER_TENANT, borrower)),
            (
                "agreement.yaml",
                document("Agreement", "a", &format!("parties: [{borrower}, {lender}], classes: [frontier]")),
            ),
        ])
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.home.join(POLICY_FOLDER).join(file), text)?)
    }

    fn commit(&self, signer: Option<&str>) -> Result<String> {
        let sign = signer.map(|signer| format!("-S{}", self.home.join(signer).display()));
        let mut arguments = vec!["commit", "--quiet", "-m", "policy"];
        arguments.extend(sign.as_deref());
        self.git(&["add", POLICY_FOLDER])?;
        self.git(&arguments)?;
        self.git(&["rev-parse", "HEAD"])
    }

    fn try_git(&self, arguments: &[&str]) -> std::io::Result<Output> {
        Command::new("git")
            .current_dir(&self.home)
            .env("HOME", &self.home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["-c", "user.name=A", "-c", "user.email=a@x", "-c", "gpg.format=ssh"])
            .args(arguments)
            .output()
    }

    fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = self.try_git(arguments)?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
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
        let output = self.try_git(&["cat-file", kind.as_str(), &id.to_string()]);
        let output = output.map_err(|error| StoreError::Unreadable(error.to_string()))?;
        if output.status.success() { Ok(output.stdout) } else { Err(StoreError::Missing { kind, id }) }
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
