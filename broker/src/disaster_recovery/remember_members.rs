//! Updates the members in `broker.json` from the group: a broker that lost its log looks for its group there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::{Config, Settings};
use crate::group::{Group, MemberStatus};
use crate::replication::member::MemberAddress;

/// Check interval.
const MEMBERS_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tries to write.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Runs until `stop`.
pub(crate) async fn run(group: Group, config: Config, stop: CancellationToken) {
    let mut settings = config.settings;
    let mut pause = MEMBERS_CHECK_INTERVAL;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = MEMBERS_CHECK_INTERVAL,
            () = stop.cancelled() => return,
        }
        let Some(members) = to_remember(&settings, &group.members()) else { continue };
        let next = Settings { members, ..settings.clone() };
        match save(&next, &config.data).await {
            Ok(()) => settings = next,
            Err(error) => {
                tracing::warn!(%error, "the members are not written down; without its log this broker may not find \
                    them");
                pause = WRITE_RETRY_INTERVAL;
            }
        }
    }
}

async fn save(settings: &Settings, data: &Path) -> Result<(), String> {
    let (settings, data) = (settings.clone(), data.to_owned());
    let saved = tokio::task::spawn_blocking(move || settings.save(&data)).await;
    saved.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// The other voters, if the settings name others. This broker's own entry stays, because it has its listen addresses.
fn to_remember(settings: &Settings, members: &[MemberStatus]) -> Option<BTreeMap<u64, MemberAddress>> {
    let voters = || members.iter().filter(|member| member.voter);
    if !voters().any(|member| member.id == settings.id) {
        // Not a member now.
        return None;
    }
    let others = voters().filter(|member| member.id != settings.id).map(|it| (it.id, it.address.clone()));
    let own = settings.members.get_key_value(&settings.id).map(|(id, address)| (*id, address.clone()));
    let next: BTreeMap<u64, MemberAddress> = others.chain(own).collect();
    (!next.is_empty() && next != settings.members).then_some(next)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::parse_members;
    use crate::replication::identity::Incarnation;

    fn settings(id: u64, members: &str) -> Settings {
        Settings {
            id,
            members: parse_members(members).unwrap(),
            bootstrap_admins: BTreeSet::new(),
            hosts: BTreeSet::new(),
        }
    }

    fn members(voters: &str, learners: &str) -> Vec<MemberStatus> {
        let all = [(voters, true), (learners, false)].map(|(text, voter)| {
            let parsed = parse_members(text).unwrap().into_iter();
            parsed.map(move |(id, address)| MemberStatus {
                id,
                address,
                incarnation: Incarnation::from_wire("life").unwrap(),
                voter,
                matched_index: None,
            })
        });
        all.into_iter().flatten().collect()
    }

    #[test]
    fn who_votes_is_remembered_and_nobody_by_those_who_do_not() {
        let founder = settings(1, "1=a:1/a:2,2=b:1/b:2,3=c:1/c:2");
        assert_eq!(to_remember(&founder, &members("1=a:1/a:2,2=b:1/b:2,3=c:1/c:2", "4=d:1/d:2")), None);
        // The addresses under which others reach it do not change its own listen addresses.
        let changed = to_remember(&founder, &members("1=z:9/z:8,3=c:1/c:2,4=d:1/d:2", ""));
        assert_eq!(changed, Some(parse_members("1=a:1/a:2,3=c:1/c:2,4=d:1/d:2").unwrap()));
        assert_eq!(to_remember(&founder, &members("2=b:1/b:2,3=c:1/c:2,4=d:1/d:2", "")), None, "it has left");
        assert_eq!(to_remember(&founder, &[]), None, "it knows nobody yet");

        let later = settings(4, "1=a:1/a:2,2=b:1/b:2,3=c:1/c:2");
        assert_eq!(to_remember(&later, &members("1=a:1/a:2,2=b:1/b:2", "4=d:1/d:2")), None, "it does not vote yet");
        let changed = to_remember(&later, &members("1=a:1/a:2,4=d:1/d:2,5=e:1/e:2", ""));
        assert_eq!(changed, Some(parse_members("1=a:1/a:2,5=e:1/e:2").unwrap()));
        assert_eq!(to_remember(&later, &members("4=d:1/d:2", "")), None, "it would name nobody");
    }
}
