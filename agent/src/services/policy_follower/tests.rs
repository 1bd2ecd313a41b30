#![expect(clippy::unwrap_used, reason = "tests")]

use comity_provenance::ObjectId;

use super::*;

fn commit(digit: char) -> ObjectId {
    digit.to_string().repeat(40).parse().unwrap()
}

fn pinned(digit: char, folder: &str) -> SignedPolicySettings {
    SignedPolicySettings { commit: Some(commit(digit)), folder: folder.parse().unwrap(), ..Default::default() }
}

async fn anchor_at_start(store: &Store, settings: &SignedPolicySettings) -> Option<PolicyAnchor> {
    let signed = policy_at_start(store, Path::new("/nonexistent"), settings).await.unwrap();
    let anchor = signed.anchor.map(|anchor| PolicyAnchor::clone(&anchor));
    assert_eq!(policy_anchor::anchor(store).unwrap(), anchor, "what is trusted is kept");
    anchor
}

#[tokio::test]
async fn a_pin_that_changed_takes_effect_and_one_that_did_not_leaves_what_is_verified() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    assert_eq!(anchor_at_start(&store, &SignedPolicySettings::default()).await, None);
    let first = anchor_at_start(&store, &pinned('a', "wrong")).await.unwrap();
    assert_eq!((first.commit, first.pinned, first.folder.as_str()), (commit('a'), Some(commit('a')), "wrong"));
    let corrected = anchor_at_start(&store, &pinned('a', "policy")).await.unwrap();
    assert_eq!((corrected.commit, corrected.folder.as_str()), (commit('a'), "policy"));

    let verified = PolicyAnchor { commit: commit('b'), ..corrected };
    policy_anchor::keep(&store, &verified).await.unwrap();
    assert_eq!(anchor_at_start(&store, &pinned('a', "policy")).await.unwrap(), verified);
    // Without the pin, what was verified stays, and no configuration stands for it.
    let unpinned = anchor_at_start(&store, &SignedPolicySettings::default()).await.unwrap();
    assert_eq!(unpinned, PolicyAnchor { pinned: None, ..verified });
    let again = anchor_at_start(&store, &pinned('c', "policy")).await.unwrap();
    assert_eq!((again.commit, again.pinned), (commit('c'), Some(commit('c'))));
}

#[tokio::test]
async fn an_unreadable_commit_is_not_taken_for_none() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    store.keep("signed-policy", b"{}".to_vec()).await.unwrap();
    let at_start = policy_at_start(&store, home.path(), &SignedPolicySettings::default()).await;
    let error = at_start.unwrap_err().to_string();
    assert!(error.contains("set signedPolicy.commit"), "{error}");
    assert_eq!(anchor_at_start(&store, &pinned('a', "policy")).await.unwrap().commit, commit('a'));
}
