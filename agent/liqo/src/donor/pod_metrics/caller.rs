//! Decides which metrics a caller may read. Pure.

use super::super::{Grants, slice_user};

/// Prefix of the paths that virtual-kubelets request; the Liqo id of their cluster and the metrics path follow.
pub(super) const SCRAPE: &str = "/apis/metrics.liqo.io/v1beta1/scrape/";
/// The only path that metrics-servers request.
const RESOURCE: &str = "metrics/resource";

/// An admitted query: for the pods of one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// Liqo id of the cluster that borrows.
    pub(super) consumer: String,
    /// User name of the slice's credential, which its pods carry as a label.
    pub(super) user: String,
}

/// Why a query is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is nothing at that path.
    NotFound,
    /// The user has no slice of that cluster with a lease in force.
    NotYours,
}

/// Parses the query of `user` for a path.
pub(super) fn question(path: &str, user: &str, grants: &Grants) -> Result<Question, Refusal> {
    let (consumer, asked) = path.strip_prefix(SCRAPE).and_then(|rest| rest.split_once('/')).ok_or(Refusal::NotFound)?;
    if asked != RESOURCE {
        return Err(Refusal::NotFound);
    }
    let is_the_users =
        grants.0.iter().any(|(slice, grant)| grant.origin_liqo_id == consumer && slice_user(slice, consumer) == user);
    if is_the_users {
        Ok(Question { consumer: consumer.to_owned(), user: user.to_owned() })
    } else {
        Err(Refusal::NotYours)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::donor::Grant;

    #[test]
    fn a_slice_sees_its_own_pods_and_no_others() {
        let grant = |consumer: &str| Grant { origin_liqo_id: consumer.to_owned(), ..Grant::default() };
        let grants = Grants(BTreeMap::from([
            ("lease-7".to_owned(), grant("physics")),
            ("lease-8".to_owned(), grant("chemistry")),
        ]));
        let mine = slice_user("lease-7", "physics");
        let asked = |path: &str, user: &str| question(&format!("{SCRAPE}{path}"), user, &grants);
        assert_eq!(asked("physics/metrics/resource", &mine).unwrap().user, mine);
        // Another cluster's, another's slice, a lease that ended, an administrator, nobody.
        for (path, user) in [
            ("chemistry/metrics/resource", mine.as_str()),
            ("physics/metrics/resource", &slice_user("lease-8", "chemistry")),
            ("physics/metrics/resource", &slice_user("lease-6", "physics")),
            ("physics/metrics/resource", "admin"),
            ("physics/metrics/resource", ""),
        ] {
            assert_eq!(asked(path, user), Err(Refusal::NotYours), "{path} {user}");
        }
        for path in ["physics", "physics/metrics", "physics/metrics/cadvisor", "physics/metrics/resource/more", ""] {
            assert_eq!(asked(path, &mine), Err(Refusal::NotFound), "{path}");
        }
    }
}
