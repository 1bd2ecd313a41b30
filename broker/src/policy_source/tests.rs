//! Pulls from the real `git http-backend`, and from servers that misbehave.
#![expect(clippy::unwrap_used, reason = "tests")]

mod artifacts;
mod git_server;
mod over_ssh;
mod registry_server;
mod ssh_server;
mod tls_server;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use comity_provenance::{ObjectId, ObjectKind, ObjectStore as _, StoreError};

use super::{
    Branch, ObjectDatabase, PolicyAccess, PullError, Pulled, PulledBranch, Repository, Wanted, objects_with, pull,
};
use git_server::{GitServer, Mood};

const PULL_PATIENCE: Duration = Duration::from_secs(30);

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .env("HOME", folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=A", "-c", "user.email=a@x"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A repository `policy`, a server, and what a broker needs to read it.
struct Scene {
    home: tempfile::TempDir,
    server: GitServer,
    access: PolicyAccess,
}

impl Scene {
    async fn new() -> Self {
        comity_runtime::install_crypto_provider();
        let home = tempfile::tempdir().unwrap();
        let repository = home.path().join("policy");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "--quiet", "--initial-branch", "main"]);
        let server = GitServer::start(home.path(), home.path()).await;
        let authorities = Some(server.authority.clone());
        let cache = home.path().join("cache");
        let access = PolicyAccess { cache, authorities, ..PolicyAccess::default() };
        let scene = Self { home, server, access };
        scene.commit("one");
        scene
    }

    fn repository(&self) -> std::path::PathBuf {
        self.home.path().join("policy")
    }

    fn commit(&self, text: &str) -> ObjectId {
        std::fs::write(self.repository().join("a.yaml"), text).unwrap();
        git(&self.repository(), &["add", "."]);
        git(&self.repository(), &["commit", "--quiet", "--allow-empty", "-m", text]);
        git(&self.repository(), &["rev-parse", "HEAD"]).parse().unwrap()
    }

    async fn pull(&self, held: &[ObjectId], deadline: Duration) -> Result<PulledBranch, PullError> {
        let url = Repository::parse(&self.server.url("policy/.git")).unwrap();
        pull(&self.access, &url, &Branch::parse("main").unwrap(), held, deadline).await.map(branch)
    }

    /// What an agent gets.
    async fn with(
        &self,
        commit: ObjectId,
        verified: Option<ObjectId>,
        deadline: Duration,
    ) -> Result<ObjectDatabase, PullError> {
        let url = Repository::parse(&self.server.url("policy/.git")).unwrap();
        let wanted = Wanted { commit, verified };
        objects_with(&self.access, &url, &Branch::parse("main").unwrap(), wanted, deadline).await
    }

    /// The number of objects of each fetched pack, smallest first.
    fn packs(&self) -> Vec<u32> {
        let files = std::fs::read_dir(self.access.cache.join("objects/pack")).unwrap();
        let packs =
            files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|is| is == "pack"));
        let count = |path| u32::from_be_bytes(std::fs::read(path).unwrap()[8..12].try_into().unwrap());
        let mut counts: Vec<u32> = packs.map(count).collect();
        counts.sort_unstable();
        counts
    }
}

fn branch(pulled: Pulled) -> PulledBranch {
    let Pulled::Branch(branch) = pulled else { panic!("{pulled:?} is no branch") };
    branch
}

fn has(pulled: &PulledBranch, commit: ObjectId) -> bool {
    pulled.objects.object(commit, ObjectKind::Commit, 1 << 20).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_fetched_and_then_only_what_is_new() {
    let scene = Scene::new().await;
    let first = scene.commit("two");
    let pulled = scene.pull(&[], PULL_PATIENCE).await.unwrap();
    assert!(pulled.head == first && has(&pulled, first));
    let second = scene.commit("three");
    let pulled = scene.pull(&[first], PULL_PATIENCE).await.unwrap();
    assert!(pulled.head == second && has(&pulled, first) && has(&pulled, second));
    let packs = scene.access.cache.join("objects/pack");
    assert_eq!(std::fs::read_dir(&packs).unwrap().count(), 4, "two packs, each with its index");
    // A lost cache is fetched again.
    std::fs::remove_dir_all(&scene.access.cache).unwrap();
    assert!(has(&scene.pull(&[second], PULL_PATIENCE).await.unwrap(), first));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_lacks_a_commit_fetches_it_once() {
    let scene = Scene::new().await;
    let head = scene.commit("two");
    let main = Branch::parse("main").unwrap();
    let with = async |commit| scene.with(commit, None, PULL_PATIENCE).await;
    for objects in futures::future::join_all((0..4).map(|_| with(head))).await {
        assert!(objects.unwrap().object(head, ObjectKind::Commit, 1 << 20).is_ok());
    }
    assert_eq!(scene.packs(), [6], "one fetch, of two commits with a tree and a file each");
    // What is there is not asked for.
    scene.server.set_mood(Mood::Hangs);
    with(head).await.unwrap();
    scene.server.set_mood(Mood::Good);
    // The agent has the older commits: the fetch leaves them out.
    let newer = scene.commit("three");
    scene.with(newer, Some(head), PULL_PATIENCE).await.unwrap();
    assert_eq!(scene.packs(), [3, 6]);
    let gone = ObjectId::of(ObjectKind::Commit, b"gone").unwrap();
    let error = with(gone).await.unwrap_err();
    assert!(error.reason.contains("has no commit"), "{error}");
    // A storm of agents asks a server that failed once in a while.
    let error = with(gone).await.unwrap_err();
    assert!(error.reason.contains("failed a few seconds ago"), "{error}");
    let turn = scene.access.fetching.lock().await;
    let error = scene.with(gone, None, Duration::from_millis(100)).await.unwrap_err();
    assert!(error.reason.contains("others fetched"), "{error}");
    drop(turn);
    let path = Repository::parse(scene.repository().to_str().unwrap()).unwrap();
    for (commit, is_there) in [(head, true), (gone, false)] {
        let wanted = Wanted { commit, verified: None };
        assert_eq!(objects_with(&scene.access, &path, &main, wanted, PULL_PATIENCE).await.is_ok(), is_there);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_read_as_it_is() {
    let scene = Scene::new().await;
    let head = scene.commit("two");
    for packed in [false, true] {
        if packed {
            git(&scene.repository(), &["gc", "--quiet"]);
        }
        let path = Repository::parse(scene.repository().to_str().unwrap()).unwrap();
        let pulled =
            branch(pull(&scene.access, &path, &Branch::parse("main").unwrap(), &[], PULL_PATIENCE).await.unwrap());
        assert!(pulled.head == head && has(&pulled, head), "{packed}");
        let tree = git(&scene.repository(), &["rev-parse", "HEAD^{tree}"]).parse().unwrap();
        assert!(matches!(pulled.objects.object(tree, ObjectKind::Commit, 1 << 20), Err(StoreError::Corrupt { .. })));
        assert!(matches!(pulled.objects.object(head, ObjectKind::Commit, 10), Err(StoreError::TooLarge { .. })));
        let none = ObjectId::of(ObjectKind::Blob, b"none").unwrap();
        assert!(matches!(pulled.objects.object(none, ObjectKind::Blob, 10), Err(StoreError::Missing { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_costs_no_more_than_the_deadline() {
    let scene = Scene::new().await;
    scene.server.set_mood(Mood::Hangs);
    let error = scene.pull(&[], Duration::from_millis(300)).await.unwrap_err();
    assert!(error.reason.contains("did not send the policy within"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_cut() {
    let scene = Scene::new().await;
    scene.server.set_mood(Mood::Endless);
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("has more than 262144 bytes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_pack_with_a_huge_file_is_refused() {
    let scene = Scene::new().await;
    std::fs::write(scene.repository().join("zeros"), vec![0; 20 << 20]).unwrap();
    scene.commit("a bomb");
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("the fetched pack cannot be used"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_cause_and_no_credentials() {
    let mut scene = Scene::new().await;
    let main = Branch::parse("main").unwrap();
    let wrong = Repository::parse(&scene.server.url("other.git")).unwrap();
    let error = pull(&scene.access, &wrong, &main, &[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("no such repository"), "{error}");
    let url = Repository::parse(&scene.server.url("policy/.git")).unwrap();
    let error = pull(&scene.access, &url, &Branch::parse("prod").unwrap(), &[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("no branch `prod`"), "{error}");
    scene.server.set_mood(Mood::Redirects);
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("redirects: https://elsewhere.example/policy.git"), "{error}");

    scene.server.set_mood(Mood::Private("Basic Ym90OmdlaGVpbQ=="));
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("refuses access (401"), "{error}");
    let credentials = scene.home.path().join("credentials");
    let port = scene.server.address.port();
    let private = comity_runtime::atomic_file::PRIVATE;
    let write = |line: String| comity_runtime::atomic_file::write(&credentials, line.as_bytes(), private).unwrap();
    write(format!("https://bot:geheim@other.example:{port}\n"));
    scene.access.credentials = Some(credentials.clone());
    scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert_eq!(*scene.server.authorizations.lock().unwrap(), Vec::<String>::new(), "sent to another host");
    write(format!("https://bot:geheim@localhost:{port}\n"));
    scene.pull(&[], PULL_PATIENCE).await.unwrap();
    write(format!("https://bot:falsch@localhost:{port}\n"));
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(!error.reason.contains("falsch"), "{error}");

    scene.server.set_mood(Mood::Good);
    scene.access.authorities = None;
    let error = scene.pull(&[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("cannot trust localhost"), "{error}");
}
