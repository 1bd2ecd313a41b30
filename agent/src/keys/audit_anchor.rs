//! The anchor: the newest head of the brokers' audit log that this agent has seen. A broker that rewrites the log cannot
//! prove that it continues the anchor.

use comity_agent_state::store::{Store, StoreError};
use comity_audit::{Hash, TreeHead, verify_consistency};
use comity_proto::v1;

/// Name of the blob with the anchor, as SIZE:ROOT.
const ANCHOR_KEY: &str = "audit-anchor";
/// Name of the blob with the newest head that was refused, the anchor that it does not continue, and the proof.
const EVIDENCE_KEY: &str = "refused-audit-head";
/// Hashes of a proof; no log has more than 2^64 records.
const MAX_HASHES: usize = 64;

/// The anchor; `None` before the first welcome.
///
/// # Errors
/// [`StoreError`].
pub(crate) fn anchor(store: &Store) -> Result<Option<TreeHead>, StoreError> {
    let kept = store.kept(ANCHOR_KEY)?.unwrap_or_default();
    // The store has checksums: a text of another form is of another version.
    Ok(std::str::from_utf8(&kept).ok().and_then(|text| text.parse().ok()))
}

/// The head that a broker proves to continue the anchor; otherwise why it does not.
pub(crate) fn judge(anchor: Option<&TreeHead>, proof: &v1::AuditProof) -> Result<TreeHead, String> {
    let head = proof.head.as_ref().ok_or("the head of the audit log is missing")?;
    let parse = |text: &String| Hash::parse(text).map_err(|error| error.to_string());
    let now = TreeHead { size: head.size, root: parse(&head.root)? };
    if proof.hashes.len() > MAX_HASHES {
        return Err(format!("the proof has {} hashes, more than {MAX_HASHES}", proof.hashes.len()));
    }
    let hashes = proof.hashes.iter().map(parse).collect::<Result<Vec<Hash>, String>>()?;
    let Some(anchor) = anchor else { return Ok(now) };
    verify_consistency(anchor, &now, &hashes)
        .map_err(|error| format!("the audit log {now} is another one: {error}"))?;
    Ok(now)
}

/// Keeps a head as the anchor, if that still is the one that the broker was asked to continue.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn advance(store: &Store, from: Option<&TreeHead>, to: &TreeHead) -> Result<(), StoreError> {
    if anchor(store)?.as_ref() != from || from == Some(to) {
        return Ok(());
    }
    store.keep(ANCHOR_KEY, to.to_string().into_bytes()).await
}

/// Keeps what a broker showed, in JSON.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn keep_evidence(
    store: &Store,
    anchor: Option<&TreeHead>,
    (broker, proof): (u64, &v1::AuditProof),
    reason: &str,
) -> Result<(), StoreError> {
    let head = proof.head.clone().unwrap_or_default();
    let hashes: Vec<&String> = proof.hashes.iter().take(MAX_HASHES).collect();
    let (size, root) = (head.size, head.root);
    let evidence = serde_json::json!({
        "broker": broker, "anchor": anchor, "size": size, "root": root, "hashes": hashes, "reason": reason,
    });
    store.keep(EVIDENCE_KEY, evidence.to_string().into_bytes()).await
}

/// Forgets the anchor: the next head that a broker shows is taken.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn forget(store: &Store) -> Result<(), StoreError> {
    store.keep(ANCHOR_KEY, Vec::new()).await
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_audit::{MemoryTree, consistency_proof, root_of};

    use super::*;

    fn log(records: impl IntoIterator<Item = u64>) -> MemoryTree {
        let mut tree = MemoryTree::default();
        records.into_iter().for_each(|record| tree.append(Hash::of_leaf(&record.to_be_bytes())));
        tree
    }

    fn proof(tree: &MemoryTree, from: u64) -> v1::AuditProof {
        let size = tree.size();
        let (Ok(root), Ok(hashes)) = (root_of(tree, size), consistency_proof(tree, from.min(size), size));
        let head = Some(v1::AuditHead { size, root: root.unwrap().to_string() });
        v1::AuditProof { head, hashes: hashes.unwrap().iter().map(Hash::to_string).collect() }
    }

    #[test]
    fn a_log_that_goes_on_is_accepted_and_a_rewritten_or_shorter_one_is_not() {
        let true_log = log(0..20);
        let anchor = judge(None, &proof(&log(0..13), 0)).unwrap();
        assert_eq!(anchor.size, 13);
        assert_eq!(judge(Some(&anchor), &proof(&true_log, 13)).unwrap().size, 20);
        assert_eq!(judge(Some(&anchor), &proof(&log(0..13), 13)), Ok(anchor));
        let rewritten = log((0..20).map(|record| if record == 5 { 99 } else { record }));
        let reason = judge(Some(&anchor), &proof(&rewritten, 13)).unwrap_err();
        assert!(reason.ends_with("its first 13 records are not those seen before"), "{reason}");
        let reason = judge(Some(&anchor), &proof(&log(0..12), 13)).unwrap_err();
        assert!(reason.ends_with("it ends at record 12, and 13 records were seen before"), "{reason}");
        let mut without_proof = proof(&true_log, 13);
        without_proof.hashes.clear();
        assert!(judge(Some(&anchor), &without_proof).is_err());
        let mut endless = proof(&true_log, 13);
        endless.hashes = vec![Hash::default().to_string(); 65];
        assert!(judge(Some(&anchor), &endless).unwrap_err().contains("65 hashes"));
        assert!(judge(None, &v1::AuditProof::default()).is_err());
    }

    #[tokio::test]
    async fn the_anchor_outlives_a_restart_and_follows_one_stream_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(anchor(&store).unwrap(), None);
        let first = judge(None, &proof(&log(0..3), 0)).unwrap();
        let second = judge(None, &proof(&log(0..5), 0)).unwrap();
        advance(&store, None, &first).await.unwrap();
        // A stream that was opened before the anchor was there cannot say that it continues it.
        advance(&store, None, &second).await.unwrap();
        assert_eq!(anchor(&store).unwrap(), Some(first));
        advance(&store, Some(&first), &second).await.unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(anchor(&store).unwrap(), Some(second));
        forget(&store).await.unwrap();
        assert_eq!(anchor(&store).unwrap(), None);
    }
}
