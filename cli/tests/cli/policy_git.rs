//! `comity policy source check`, `history` and `rollback` in a clone of the policy's repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use comity_testkit::SignedGit;

use super::{run, stderr, stdout};

/// A clone whose settings sign with the key of somebody.
struct PolicyClone(SignedGit);

impl PolicyClone {
    fn new(home: &Path, people: &[&str]) -> Self {
        let clone = Self(SignedGit::init(home, people).unwrap());
        for (setting, value) in [("user.name", "A"), ("user.email", "a@x"), ("gpg.format", "ssh")] {
            clone.git(&["config", setting, value]);
        }
        clone
    }

    fn path(&self) -> PathBuf {
        self.0.path()
    }

    fn git(&self, args: &[&str]) -> String {
        self.0.git(args).unwrap()
    }

    /// Whose key `git` takes if nothing else is said.
    fn signs_as(&self, person: &str) {
        let key = self.path().parent().unwrap().join(person);
        self.git(&["config", "user.signingKey", key.to_str().unwrap()]);
    }

    fn key(&self, person: &str) -> String {
        self.0.key(person).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        self.0.write(file, text).unwrap();
    }

    fn commit(&self, signer: &str, message: &str) -> String {
        self.0.commit(Some(signer), message).unwrap()
    }

    /// What pipelines run, with a federation if there is one: its brokers, and the identity to use there.
    fn pipeline(&self, script: &str, base: &str) -> Output {
        let (programs, home) = (Path::new(env!("CARGO_BIN_EXE_comity")).parent().unwrap(), self.path());
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        std::fs::create_dir_all(home.join("ci")).unwrap();
        std::fs::copy(shipped("check-policy"), home.join("ci/check-policy")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script]).current_dir(&home).env("PATH", path).env("HOME", home.parent().unwrap());
        command.env_remove("COMITY_IDENTITY").env("COMITY_BROKER", "brokers.example:7443");
        // What the servers set.
        command.env("BASE", base).env("COMITY_PLANNER", "");
        let branch = base.trim_start_matches("refs/remotes/origin/");
        command.env("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", branch).output().unwrap()
    }

    /// The check alone.
    fn check_policy(&self, base: &str, folder: Option<&str>, federation: Option<(&str, &str)>) -> (Output, String) {
        let programs = Path::new(env!("CARGO_BIN_EXE_comity")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(shipped("check-policy"));
        command.arg(base).args(folder).current_dir(self.path()).env("PATH", path).env_remove("COMITY_BROKER");
        if let Some((brokers, identity)) = federation {
            command.env("COMITY_BROKER", brokers).env("COMITY_IDENTITY", identity);
        }
        let output = command.output().unwrap();
        let comment = std::fs::read_to_string(self.path().join("policy-comment.md")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path().join("policy-comment.md"));
        let _ = std::fs::remove_file(self.path().join("policy-tests.xml"));
        (output, comment)
    }
}

/// A file of the pipelines.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/gitops").join(name)
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

#[test]
fn commits_are_judged_without_a_broker_by_a_commit_that_is_trusted() {
    let temp = tempfile::tempdir().unwrap();
    let clone = PolicyClone::new(temp.path(), &["ingrid", "poly", "eve"]);
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
    };
    let ingrid = "spiffe://t.example/user/ingrid";
    let key = clone.key("ingrid");
    let federation = format!(
        "trustDomain: t.example, maintainers: [{ingrid}], signatures: {{required: true, maintainersNeeded: 1}}, \
         commitKeys: [{{maintainer: {ingrid}, key: {key}}}]"
    );
    let poly = format!("displayName: X, contact: a@x, clusters: [farm], commitKeys: [{{key: {}}}]", clone.key("poly"));
    clone.write("policy/federation.yaml", &document("Federation", "f", &federation));
    clone.write("policy/poly.yaml", &document("Institution", "poly", &poly));
    let base = clone.commit("ingrid", "base");
    clone.git(&["branch", "base"]);
    // It would win against the branch if the pipeline named that in short.
    clone.git(&["tag", "origin/main"]);
    let at = clone.path().display().to_string();
    let check = |more: &[&str]| {
        let args = ["policy", "source", "check", "--base", &base, "--folder", "policy"];
        run(&[&args, &["--repo", &at][..], more].concat())
    };
    assert_eq!(json(&check(&["-o", "json"]))["verdict"], "in-force");

    clone.write("policy/poly.yaml", &document("Institution", "poly", &poly.replace("a@x", "b@x")));
    let changed = clone.commit("ingrid", "a maintainer changes an institution");
    let refused = check(&["-o", "json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    let (judged, error) = (json(&refused), stderr(&refused));
    assert_eq!((&judged["verdict"], &judged["code"]), (&"refused".into(), &"unsigned".into()), "{judged}");
    assert_eq!(judged["unsigned"][0]["commit"], *changed, "{judged}");
    assert_eq!(judged["unsigned"][0]["document"], "Institution `poly`", "{judged}");
    assert!(error.contains("commit-refused") && error.contains(&format!("Approves: {changed}")), "{error}");
    let shown = stdout(&check(&[]));
    assert_eq!(shown.matches("Approves:").count(), 1, "{shown}");
    assert!(shown.contains("cannot come into force: unsigned") && shown.contains("institution `poly`"), "{shown}");

    let (checked, comment) = clone.check_policy("refs/heads/base", Some("policy"), None);
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
    assert!(comment.contains("## Signatures") && comment.contains("institution `poly`"), "{comment}");

    let approve = ["commit", "--quiet", "--gpg-sign", "--allow-empty", "--message", "Approve", "--trailer"];
    let trailer = format!("Approves: {changed}");
    clone.signs_as("eve");
    clone.git(&[&approve[..], &[&trailer]].concat());
    assert_eq!(json(&check(&["-o", "json"]))["verdict"], "refused", "eve is nobody");
    clone.signs_as("poly");
    clone.git(&[&approve[..], &[&trailer]].concat());
    let accepted = check(&["-o", "json"]);
    let judged = json(&accepted);
    assert!(accepted.status.success() && judged["verdict"] == "accepted" && judged["commits"] == 3, "{judged}");
    assert_eq!(judged["documents"][0]["change"], "changed", "{judged}");
    assert!(stdout(&check(&[])).contains("can come into force"), "{}", stdout(&check(&[])));
    let (checked, comment) = clone.check_policy("refs/heads/base", Some("policy"), None);
    assert!(checked.status.success() && comment.contains("can come into force"), "{comment}{}", stderr(&checked));
    assert!(!comment.contains("Consequences"), "{comment}");
    // The base moves on: what is judged is the merge.
    clone.git(&["checkout", "--quiet", "base"]);
    clone.write("README.md", "more\n");
    clone.commit("eve", "not about the policy");
    clone.git(&["checkout", "--quiet", "main"]);
    let (checked, comment) = clone.check_policy("refs/heads/base", Some("policy"), None);
    assert!(checked.status.success() && comment.contains("can come into force"), "{comment}{}", stderr(&checked));
    clone.git(&["checkout", "--quiet", "main"]);
    // As the servers run it, where the branch is that of a remote repository.
    clone.git(&["update-ref", "refs/remotes/origin/base", "base"]);
    let yaml = |name| -> serde_json::Value {
        serde_saphyr::from_str(&std::fs::read_to_string(shipped(name)).unwrap()).unwrap()
    };
    let steps = yaml("github.yaml")["jobs"]["policy"]["steps"].clone();
    let step = steps.as_array().unwrap().iter().find(|step| step["name"] == "Check").unwrap().clone();
    let gitlab = yaml("gitlab.yaml")["policy"]["script"][0].clone();
    for script in [&step["run"], &gitlab] {
        let ran = clone.pipeline(script.as_str().unwrap(), "refs/remotes/origin/base");
        assert!(ran.status.success(), "{script}: {}{}", stdout(&ran), stderr(&ran));
        assert!(stdout(&ran).contains("can come into force") && !stdout(&ran).contains("Consequences"), "{script}");
        clone.git(&["checkout", "--quiet", "main"]);
    }
    assert_eq!(step["env"]["BASE"], "refs/remotes/origin/${{ github.base_ref }}");
    let (short, _) = clone.check_policy("origin/main", Some("policy"), None);
    assert!(short.status.code() == Some(2) && stderr(&short).contains("the full name"), "{}", stderr(&short));
    // The commit before the approval is judged on its own.
    assert_eq!(check(&[&changed]).status.code(), Some(1));

    for (args, problem, remedy) in [
        (&["nowhere"][..], "`nowhere` names no commit", "git fetch"),
        (&["--", "--all"], "`--all` names no commit", "git fetch"),
    ] {
        let failed = check(args);
        assert_eq!(failed.status.code(), Some(2), "{args:?}: {}", stderr(&failed));
        assert!(stderr(&failed).contains(problem) && stderr(&failed).contains(remedy), "{}", stderr(&failed));
    }
    let outside = run(&["policy", "source", "check", "--base", "HEAD", "--repo", temp.path().to_str().unwrap()]);
    assert!(outside.status.code() == Some(2) && stderr(&outside).contains("--repo"), "{}", stderr(&outside));
    let other = run(&["policy", "source", "check", "--base", &base, "--repo", &at, "--folder", "elsewhere"]);
    assert!(stderr(&other).contains("has no folder `elsewhere`"), "{}", stderr(&other));
    let invalid = run(&["policy", "source", "check", "--base", &base, "--repo", &at, "--folder", "../x"]);
    assert!(invalid.status.code() == Some(2) && stderr(&invalid).contains("is no folder"), "{}", stderr(&invalid));
}

#[test]
fn a_policy_that_is_a_whole_repository_is_checked() {
    let temp = tempfile::tempdir().unwrap();
    let clone = PolicyClone::new(temp.path(), &["ingrid"]);
    let federation = "apiVersion: policy.comity.dev/v1\nkind: Federation\nmetadata: {name: f}\nspec: {trustDomain: \
                      t.example, maintainers: [spiffe://t.example/user/ingrid]}\n";
    clone.write("federation.yaml", federation);
    clone.commit("ingrid", "base");
    clone.git(&["branch", "base"]);
    clone.write("federation.yaml", &federation.replace("name: f", "name: g"));
    clone.commit("ingrid", "another name");
    let (checked, comment) = clone.check_policy("refs/heads/base", None, None);
    assert!(checked.status.success() && comment.contains("can come into force"), "{comment}{}", stderr(&checked));
}

/// Waits until a commit is in force.
fn in_force(run: &dyn Fn(&[&str]) -> Output, commit: &str) {
    let begun = Instant::now();
    loop {
        let source = json(&run(&["policy", "source", "show", "-o", "json"]));
        if source["commit"] == commit {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{commit} does not come into force: {source}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The policy of the federation is pulled from a clone, changed there, and rolled back.
pub(crate) fn is_rolled_back(run: &(dyn Fn(&[&str]) -> Output + Sync), maintainer: &str, temp: &Path) {
    let run = |args: &[&str]| run(&[&["--identity", maintainer], args].concat());
    let home = tempfile::tempdir_in(temp).unwrap();
    let clone = PolicyClone::new(home.path(), &["ingrid"]);
    let at = clone.path().display().to_string();
    let in_clone = |args: &[&str]| run(&[args, &["--repo", &at]].concat());
    let early = in_clone(&["policy", "rollback", "HEAD"]);
    assert!(stderr(&early).contains("the policy has no source"), "{}", stderr(&early));

    let shown = run(&["policy", "show", "--out", clone.path().join("policy").to_str().unwrap()]);
    assert!(shown.status.success(), "{}", stderr(&shown));
    clone.write("policy/notes.txt", "of the first commit\n");
    let first = clone.commit("ingrid", "as it is in force");
    let set = run(&["policy", "source", "set", &at, "--folder", "policy", "--interval", "5s"]);
    assert!(set.status.success(), "{}", stderr(&set));
    in_force(&run, &first);

    clone.git(&["checkout", "--quiet", "-b", "proposal"]);
    clone.write("policy/more/rule.yaml", "apiVersion: policy.comity.dev/v1\nkind: Rule\nmetadata: {name: rolled-back}\nspec: {message: no, deny: 'false'}\n");
    // Ignored files count as somebody's, too.
    clone.git(&["rm", "--quiet", "policy/notes.txt"]);
    clone.write(".gitignore", "notes.txt\n");
    let second = clone.commit("ingrid", "a rule");
    let checked = json(&in_clone(&["policy", "source", "check", "-o", "json"]));
    assert_eq!((&checked["verdict"], &checked["base"]), (&"accepted".into(), &first.as_str().into()), "{checked}");
    let brokers = json(&run(&["raft", "status", "-o", "json"]))["members"][0]["clientAddress"].clone();
    let (checked, comment) =
        clone.check_policy("refs/heads/main", Some("policy"), Some((brokers.as_str().unwrap(), maintainer)));
    assert!(checked.status.success(), "{comment}{}", stderr(&checked));
    assert!(comment.contains("## Consequences") && comment.contains("rolled-back"), "{comment}");
    clone.git(&["checkout", "--quiet", "main"]);
    clone.git(&["merge", "--quiet", "--ff-only", "proposal"]);
    in_force(&run, &second);
    let history = json(&run(&["policy", "history", "-o", "json"]));
    let commits: Vec<&str> =
        history["items"].as_array().unwrap().iter().filter_map(|it| it["commit"].as_str()).collect();
    assert_eq!(commits, [&second, &first], "{history}");
    let table = stdout(&run(&["policy", "history", "--wide"]));
    assert!(table.lines().nth(1).is_some_and(|line| line.contains(&second)), "{table}");

    let planned = json(&in_clone(&["policy", "rollback", &first, "--dry-run", "-o", "json"]));
    assert_eq!(planned["to"], *first);
    assert_eq!(
        (&planned["documents"][0]["change"], &planned["documents"][0]["name"]),
        (&"removed".into(), &"rolled-back".into())
    );
    clone.signs_as("ingrid");
    for (before, args, code, text) in [
        ("", &["nowhere"][..], 2, "names no commit"),
        ("", &[&second], 1, "the policy of HEAD is that of"),
        ("policy/more/rule.yaml", &[&first], 1, "policy/more/rule.yaml"),
        ("policy/notes.txt", &[&first], 1, "policy/notes.txt"),
    ] {
        if !before.is_empty() {
            clone.write(before, "not committed\n");
        }
        let refused = in_clone(&[&["policy", "rollback"], args].concat());
        assert_eq!(refused.status.code(), Some(code), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(text), "{}", stderr(&refused));
        assert_eq!(clone.git(&["rev-parse", "HEAD"]), second);
        if !before.is_empty() {
            assert_eq!(std::fs::read_to_string(clone.path().join(before)).unwrap(), "not committed\n");
        }
    }
    std::fs::remove_file(clone.path().join("policy/notes.txt")).unwrap();
    clone.git(&["checkout", "--quiet", "--", "policy"]);
    clone.git(&["checkout", "--quiet", "-b", "behind", &first]);
    let behind = in_clone(&["policy", "rollback", &first]);
    assert!(stderr(&behind).contains("check out branch main"), "{}", stderr(&behind));
    clone.git(&["checkout", "--quiet", "main"]);

    clone.signs_as("nobody");
    let unsigned = in_clone(&["policy", "rollback", &first]);
    assert!(unsigned.status.code() == Some(1) && stderr(&unsigned).contains("as before"), "{}", stderr(&unsigned));
    assert_eq!(
        (clone.git(&["rev-parse", "HEAD"]), clone.git(&["status", "--porcelain"])),
        (second.clone(), String::new())
    );

    clone.signs_as("ingrid");
    let done = in_clone(&["policy", "rollback", &first, "-o", "json"]);
    let judged = json(&done);
    assert_eq!(judged["verdict"], "accepted", "{judged}");
    let third = clone.git(&["rev-parse", "HEAD"]);
    assert_eq!(
        (judged["head"].as_str().unwrap(), clone.git(&["rev-parse", "HEAD^"])),
        (third.as_str(), second.clone())
    );
    assert_eq!(clone.git(&["rev-parse", "HEAD:policy"]), clone.git(&["rev-parse", &format!("{first}:policy")]));
    assert!(clone.git(&["cat-file", "commit", "HEAD"]).contains("gpgsig"), "it is signed");
    in_force(&run, &third);

    // The whole repository is the policy, and most of it is not checked out.
    let set = run(&["policy", "source", "set", &at, "--interval", "5s"]);
    assert!(set.status.success(), "{}", stderr(&set));
    in_force(&run, &third);
    clone.git(&["sparse-checkout", "set", "--no-cone", "/ci/"]);
    let whole = json(&in_clone(&["policy", "rollback", &second, "-o", "json"]));
    assert_eq!(whole["verdict"], "accepted", "{whole}");
    let fourth = clone.git(&["rev-parse", "HEAD"]);
    assert_eq!(clone.git(&["rev-parse", "HEAD^{tree}"]), clone.git(&["rev-parse", &format!("{second}^{{tree}}")]));
    in_force(&run, &fourth);
    let set = run(&["policy", "source", "set", &at, "--folder", "policy", "--interval", "5s"]);
    assert!(set.status.success(), "{}", stderr(&set));
    in_force(&run, &fourth);
    let folder = json(&in_clone(&["policy", "rollback", &first, "-o", "json"]));
    assert_eq!(folder["verdict"], "accepted", "{folder}");
    let fifth = clone.git(&["rev-parse", "HEAD"]);
    assert_eq!(clone.git(&["rev-parse", "HEAD:policy"]), clone.git(&["rev-parse", &format!("{first}:policy")]));
    assert_eq!(clone.git(&["status", "--porcelain"]), "", "nothing is left behind");
    in_force(&run, &fifth);

    let removed = run(&["policy", "source", "remove", "--yes"]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    let checked = in_clone(&["policy", "source", "check", "--folder", "policy"]);
    assert!(stderr(&checked).contains("the policy has no source"), "{}", stderr(&checked));
    let late = in_clone(&["policy", "rollback", &second]);
    assert!(stderr(&late).contains("'comity policy source set'"), "{}", stderr(&late));
}
