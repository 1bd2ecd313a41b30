//! A repository with a small federation's policy, and the keys of its people.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use comity_policy::{Bundle, BundleSource, read_directory};
use comity_provenance::{InForce, ObjectId, ObjectKind, ObjectStore, PolicyFolder, StoreError, Verdict, judge};
use tempfile::TempDir;

/// Everybody with a key. `old` is a key of polytechnic whose time is over, `eve` is nobody.
const PEOPLE: [&str; 8] = ["ingrid", "otto", "third", "poly", "old", "centre", "new", "eve"];
/// The time of all verdicts: 2026-12-01.
pub(crate) const NOW_MS: u64 = 1_796_083_200_000;

pub(crate) struct Repository {
    folder: TempDir,
    /// The bundle in force and its commit.
    pub(crate) in_force: Bundle,
    pub(crate) commit: Option<ObjectId>,
    pub(crate) began: Option<ObjectId>,
    pub(crate) taken_names: BTreeSet<String>,
    pub(crate) now_ms: u64,
}

impl Repository {
    /// A repository whose first commit is in force.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        fs::create_dir(&keys).unwrap();
        for person in PEOPLE {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", if person == "centre" { "ecdsa" } else { "ed25519" }, "-N", "", "-C", person, "-f"])
                .arg(keys.join(person))
                .status();
            assert!(made.expect("ssh-keygen runs").success());
        }
        let empty = Bundle::compile(&BundleSource::of_files(minimal())).unwrap();
        let taken_names = BTreeSet::new();
        let mut repository = Self { folder, in_force: empty, commit: None, began: None, taken_names, now_ms: NOW_MS };
        repository.git(&["init", "--quiet", "--initial-branch", "main"]);
        for (file, text) in repository.documents() {
            repository.write(file, &text);
        }
        repository.commit(Some("ingrid"), "first");
        repository.take_into_force();
        repository
    }

    fn documents(&self) -> BTreeMap<&'static str, String> {
        let key = |person: &str| self.key(person);
        let member = |name: &str, keys: &str, clusters: &str| {
            document("Institution", name, &format!("displayName: X, contact: a@x, clusters: [{clusters}]{keys}"))
        };
        let users = ["ingrid", "otto"].map(|user| format!("spiffe://t.example/user/{user}"));
        let [ingrid, otto] = &users;
        let federation = format!(
            "trustDomain: t.example, maintainers: [{ingrid}, {otto}], brokerOperators: [{ingrid}], signatures: {{required: true}}, \
             commitKeys: [{{maintainer: {ingrid}, key: {}}}, {{maintainer: {otto}, key: {}}}]",
            key("ingrid"),
            key("otto")
        );
        let poly = format!(", commitKeys: [{{key: {}}}, {{key: {}, until: 2026-11-30}}]", key("poly"), key("old"));
        let centre = format!(", commitKeys: [{{key: {}}}]", key("centre"));
        BTreeMap::from([
            ("federation.yaml", document("Federation", "f", &federation)),
            ("poly.yaml", member("poly", &poly, "poly-farm")),
            ("centre.yaml", member("centre", &centre, "centre-main")),
            ("keyless.yaml", member("keyless", "", "keyless-pc")),
            ("class.yaml", document("GpuClass", "large", "selector: device.memoryMiB > 1000, rank: 1")),
            (
                "cluster.yaml",
                document(
                    "Cluster",
                    "centre-main",
                    "institution: centre, localReserveGpus: 2, lends: [{classes: [large], to: {institutions: [poly]}}]",
                ),
            ),
            (
                "tenant.yaml",
                document(
                    "Tenant",
                    "ml",
                    "institution: poly, members: [{id: spiffe://t.example/user/alice, role: submitter}], classes: [large], clusters: [poly-farm]",
                ),
            ),
            ("quota.yaml", document("Quota", "ml-large", "tenant: ml, maxConcurrentGpus: 8")),
            ("agreement.yaml", document("Agreement", "both", "parties: [poly, centre], classes: [large], maxGpus: 8")),
            ("rule.yaml", document("Rule", "short", "message: m24, deny: donor.region == 'south'")),
        ])
    }

    /// The public key of somebody.
    pub(crate) fn key(&self, person: &str) -> String {
        fs::read_to_string(self.folder.path().join("keys").join(format!("{person}.pub"))).unwrap().trim().to_owned()
    }

    /// The folder with the work tree.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn policy(&self) -> PathBuf {
        self.folder.path().join("policy")
    }

    /// Runs git without the settings of this machine.
    pub(crate) fn try_git(&self, arguments: &[&str]) -> Output {
        Command::new("git")
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .args([
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@x",
                "-c",
                "gpg.format=ssh",
                "-c",
                "advice.detachedHead=false",
            ])
            .args(arguments)
            .output()
            .expect("git runs")
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = self.try_git(arguments);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.policy()).unwrap();
        fs::write(self.policy().join(file), text).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.policy().join(file)).unwrap();
    }

    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.policy().join(file)).unwrap();
        assert!(text.contains(from), "{file} has no {from}: {text}");
        self.write(file, &text.replace(from, to));
    }

    /// Commits everything, signed by somebody's key or not at all.
    pub(crate) fn commit(&self, signer: Option<&str>, message: &str) -> ObjectId {
        self.git(&["add", "policy"]);
        let mut arguments =
            vec!["commit".to_owned(), "--quiet".into(), "--allow-empty".into(), "-m".into(), message.into()];
        if let Some(signer) = signer {
            arguments.push(format!("-S{}", self.path().join("keys").join(signer).display()));
        }
        self.git(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        self.head()
    }

    /// An empty signed commit that approves another one.
    pub(crate) fn approve(&self, signer: &str, commit: ObjectId) -> ObjectId {
        self.commit(Some(signer), &format!("Approve\n\nApproves: {commit}"))
    }

    /// Merges a branch, signed or not.
    pub(crate) fn merge(&self, branch: &str, signer: Option<&str>) -> ObjectId {
        let sign = signer.map(|signer| format!("-S{}", self.path().join("keys").join(signer).display()));
        let mut arguments = vec!["merge", "--quiet", "--no-ff", "-m", "Merge", branch];
        arguments.extend(sign.as_deref());
        self.git(&arguments);
        self.head()
    }

    pub(crate) fn head(&self) -> ObjectId {
        self.git(&["rev-parse", "HEAD"]).parse().unwrap()
    }

    /// Changes the object of the head, and makes the result the head.
    pub(crate) fn forge(&self, change: impl FnOnce(String) -> String) -> ObjectId {
        let object = self.path().join("object");
        let mut text = self.git(&["cat-file", "commit", "HEAD"]);
        text.push('\n');
        fs::write(&object, change(text)).unwrap();
        let id = self.git(&["hash-object", "-t", "commit", "-w", "--literally", object.to_str().unwrap()]);
        self.git(&["reset", "--quiet", "--soft", &id]);
        id.parse().unwrap()
    }

    /// Puts the head into force, whoever signed it.
    pub(crate) fn take_into_force(&mut self) {
        let files = read_directory(&self.policy()).unwrap();
        self.in_force =
            Bundle::compile(&BundleSource::of_files(files)).unwrap_or_else(|problems| panic!("{problems:#?}"));
        if self.commit.is_none() {
            self.began = Some(self.head());
        }
        self.commit = Some(self.head());
    }

    pub(crate) fn judge(&self) -> Verdict {
        let in_force =
            InForce { bundle: &self.in_force, commit: self.commit, began: self.began, taken_names: &self.taken_names };
        judge(self, &"policy".parse::<PolicyFolder>().unwrap(), &in_force, self.head(), self.now_ms).unwrap()
    }
}

impl ObjectStore for Repository {
    fn object(&self, id: ObjectId, kind: ObjectKind, _limit: usize) -> Result<Vec<u8>, StoreError> {
        let output = self.try_git(&["cat-file", kind.as_str(), &id.to_string()]);
        if output.status.success() { Ok(output.stdout) } else { Err(StoreError::Missing { kind, id }) }
    }
}

/// One document.
pub(crate) fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

fn minimal() -> Vec<comity_policy::SourceFile> {
    let text = document("Federation", "f", "trustDomain: t.example, maintainers: [spiffe://t.example/user/ingrid]");
    vec![comity_policy::SourceFile { path: "federation.yaml".to_owned(), text }]
}
