//! The broker group: status, members, log time.

use std::collections::{BTreeMap, BTreeSet};

use comity_proto::v1;
use serde::Serialize;

use crate::output::{Answer, Column, Sheet, columns, fields};
use crate::units::{age, format_duration};

/// The group as each broker sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftStatus {
    /// An entry per broker asked.
    pub brokers: Vec<RaftBroker>,
    /// Members according to the leader, else to another broker that answered.
    pub members: Vec<RaftMember>,
    /// Roots other than that broker's under which members' newest certificates are.
    pub old_roots: Vec<OldRoot>,
}

/// A root that members still need.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OldRoot {
    /// SHA-256, in hex.
    pub sha256: String,
    /// Clusters whose newest certificate is under it; at most 64.
    pub clusters: Vec<String>,
    /// Number of all such clusters.
    pub cluster_count: u32,
    /// Number of users whose newest certificate is under it.
    pub user_count: u32,
    /// When the last of these certificates expires, in milliseconds since 1970.
    pub last_not_after_ms: u64,
}

/// Members of the group after a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftMembers {
    /// All members.
    pub members: Vec<RaftMember>,
}

/// One broker's view of itself and the group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftBroker {
    /// Address that was called.
    pub address: String,
    /// Why it did not answer; none if it did.
    pub error: Option<String>,
    /// Number of the broker.
    pub id: u64,
    /// `leader`, `follower`, `learner`, `candidate`; empty if it did not answer.
    pub role: String,
    /// Leader known to it; 0 if none.
    pub leader: u64,
    /// Raft term.
    pub term: u64,
    /// Last log index on disk.
    pub last_log_index: u64,
    /// Last applied log index.
    pub applied_index: u64,
    /// Last log index in its newest snapshot.
    pub snapshot_index: u64,
    /// Revision of the state.
    pub revision: u64,
    /// SHA-256 of the state; equal on brokers at the same applied index.
    pub state_sha256: String,
    /// Invariants that its state violates.
    pub violations: Vec<String>,
    /// Envelopes not delivered yet.
    pub envelopes: u64,
    /// Name of its group; empty if it belongs to none.
    pub group: String,
    /// Incarnation: changes when the broker loses its disk.
    pub incarnation: String,
    /// Whether it votes and may lead.
    pub may_vote: bool,
    /// Log time when it answered, in milliseconds since 1970.
    pub log_time_ms: u64,
    /// Its wall clock minus the median of a majority's clocks; null without a majority.
    pub clock_offset_ms: Option<i64>,
    /// Log time minus that median.
    pub log_time_offset_ms: Option<i64>,
    /// SHA-256 of the root under which it issues certificates, in hex; empty if it did not answer.
    pub issuing_root_sha256: String,
}

/// Result of rebasing log time, or of its dry run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RebasedTime {
    /// Log time before, in milliseconds since 1970.
    pub log_time_ms: u64,
    /// Change of log time.
    pub by_ms: i64,
    /// Leases not ended yet; their ends move with log time.
    pub leases: u64,
    /// Waiting requests with a start window; the window does not move.
    pub start_windows: u64,
    /// False after a dry run.
    pub done: bool,
}

/// One member of the group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftMember {
    /// Number of the broker.
    pub id: u64,
    /// Address of its Raft endpoint.
    pub raft_address: String,
    /// Address of its gRPC endpoint.
    pub client_address: String,
    /// Whether it votes.
    pub voter: bool,
    /// Last log index known to be on its disk; only the leader knows it.
    pub matched_index: u64,
    /// Incarnation that the group admitted.
    pub incarnation: String,
}

impl RaftBroker {
    /// The entry of a broker that answered.
    #[must_use]
    pub fn answered(address: String, status: &v1::GetRaftStatusResponse) -> Self {
        Self {
            address,
            error: None,
            id: status.id,
            role: status.role.clone(),
            leader: status.leader,
            term: status.term,
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            revision: status.revision,
            state_sha256: status.state_sha256.clone(),
            violations: status.violations.clone(),
            envelopes: status.envelopes,
            group: status.group.clone(),
            incarnation: status.incarnation.clone(),
            may_vote: status.may_vote,
            log_time_ms: status.log_time_ms,
            clock_offset_ms: status.clock_offset_ms,
            log_time_offset_ms: status.log_time_offset_ms,
            issuing_root_sha256: status.issuing_root_sha256.clone(),
        }
    }

    /// The entry of a broker that did not answer.
    #[must_use]
    pub fn silent(address: String, error: String) -> Self {
        Self { address, error: Some(error), ..Self::default() }
    }
}

impl RaftStatus {
    /// Who issues under which root, if the brokers differ.
    fn differing_roots(&self) -> Option<String> {
        let mut roots: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for broker in self.brokers.iter().filter(|broker| !broker.issuing_root_sha256.is_empty()) {
            roots.entry(&broker.issuing_root_sha256).or_default().push(broker.id.to_string());
        }
        let issue = |(root, brokers): (&&str, &Vec<String>)| {
            format!("{} under {}", brokers.join(" and "), root.chars().take(12).collect::<String>())
        };
        let issuing: Vec<String> = roots.iter().map(issue).collect();
        (roots.len() > 1).then(|| {
            format!(
                "brokers issue certificates under different roots, {}: install the newest intermediate on each\n",
                issuing.join(", ")
            )
        })
    }

    /// Whether one leader serves one group, with all invariants in order.
    ///
    /// # Errors
    /// The problem, in one sentence.
    pub fn health(&self) -> Result<(), String> {
        let answered = || self.brokers.iter().filter(|broker| broker.error.is_none());
        let groups: BTreeSet<&str> =
            answered().map(|broker| broker.group.as_str()).filter(|it| !it.is_empty()).collect();
        if groups.len() > 1 {
            let of = |group: &&str| {
                let ids: Vec<String> =
                    answered().filter(|broker| broker.group == **group).map(|broker| broker.id.to_string()).collect();
                format!("{} of group {}", ids.join(" and "), group.chars().take(8).collect::<String>())
            };
            let all: Vec<String> = groups.iter().map(of).collect();
            return Err(format!("TWO GROUPS answer, and only one may continue: brokers {}", all.join(", ")));
        }
        if let Some(broken) = answered().find_map(|broker| broker.violations.first()) {
            return Err(format!("an invariant is broken: {broken}"));
        }
        let leaders: BTreeSet<u64> =
            answered().filter(|broker| broker.role == "leader").map(|broker| broker.id).collect();
        let known: BTreeSet<u64> = answered().map(|broker| broker.leader).filter(|leader| *leader > 0).collect();
        if leaders.is_empty() && known.is_empty() { Err("no broker leads".to_owned()) } else { Ok(()) }
    }
}

impl From<v1::RaftMember> for RaftMember {
    fn from(member: v1::RaftMember) -> Self {
        Self {
            id: member.id,
            raft_address: member.raft_address,
            client_address: member.client_address,
            voter: member.voter,
            matched_index: member.matched_index,
            incarnation: member.incarnation,
        }
    }
}

const OLD_ROOT_COLUMNS: [Column; 4] =
    [Column::text("old root"), Column::number("users"), Column::text("last certificate"), Column::message("clusters")];

impl OldRoot {
    fn row(&self, now_ms: u64) -> Vec<String> {
        let mut clusters = self.clusters.join(", ");
        let named = u32::try_from(self.clusters.len()).unwrap_or(u32::MAX);
        if self.cluster_count > named {
            clusters.push_str(&format!(", and {} more", self.cluster_count - named));
        }
        vec![
            self.sha256.chars().take(12).collect(),
            self.user_count.to_string(),
            format!("ends {}", age(self.last_not_after_ms, now_ms)),
            if clusters.is_empty() { "-".to_owned() } else { clusters },
        ]
    }
}

impl From<v1::OldRoot> for OldRoot {
    fn from(root: v1::OldRoot) -> Self {
        Self {
            sha256: root.sha256,
            clusters: root.clusters,
            cluster_count: root.cluster_count,
            user_count: root.user_count,
            last_not_after_ms: root.last_not_after_ms,
        }
    }
}

impl Answer for RaftStatus {
    fn table(&self, now_ms: u64) -> Sheet {
        let row = |broker: &RaftBroker| match &broker.error {
            Some(_) => {
                let mut row = vec!["-".to_owned(); 10];
                broker.address.clone_into(&mut row[1]);
                "no answer".clone_into(&mut row[2]);
                row
            }
            None => vec![
                broker.id.to_string(),
                broker.address.clone(),
                broker.role.clone(),
                if broker.leader == 0 { "none".to_owned() } else { broker.leader.to_string() },
                broker.term.to_string(),
                broker.last_log_index.to_string(),
                broker.applied_index.to_string(),
                broker.revision.to_string(),
                broker.state_sha256.chars().take(12).collect(),
                broker.clock_offset_ms.map_or_else(|| "?".to_owned(), offset_text),
            ],
        };
        let heads = [
            Column::number("broker"),
            Column::text("address"),
            Column::state("role"),
            Column::number("leader").rank(1),
            Column::number("term").rank(3),
            Column::number("last log").rank(6),
            Column::number("applied").rank(2),
            Column::number("revision").rank(5),
            Column::text("state").rank(4),
            Column::number("clock").rank(1),
        ];
        let brokers = columns(&heads, self.brokers.iter().map(row).collect(), "no brokers");
        let silent: String = self
            .brokers
            .iter()
            .filter_map(|broker| Some(format!("{}: {}\n", broker.address, broker.error.as_ref()?)))
            .collect();
        let broken: String = self
            .brokers
            .iter()
            .flat_map(|broker| {
                broker.violations.iter().map(|broken| format!("BROKEN on broker {}: {broken}\n", broker.id))
            })
            .collect();
        let differing = self.differing_roots().unwrap_or_default();
        let sheet = brokers.gap().then(silent).then(broken).then(differing).then(members_table(&self.members));
        if self.old_roots.is_empty() {
            return sheet;
        }
        let rows = self.old_roots.iter().map(|root| root.row(now_ms)).collect();
        sheet.gap().then(columns(&OLD_ROOT_COLUMNS, rows, ""))
    }
}

/// A clock's offset for people: `-12 ms` below a second, else `+2h`.
fn offset_text(ms: i64) -> String {
    let sign = if ms < 0 { '-' } else { '+' };
    match ms.unsigned_abs() {
        small @ 0..1_000 => format!("{sign}{small} ms"),
        large => format!("{sign}{}", format_duration(large)),
    }
}

impl From<v1::RebaseTimeResponse> for RebasedTime {
    fn from(answer: v1::RebaseTimeResponse) -> Self {
        Self {
            log_time_ms: answer.log_time_ms,
            by_ms: answer.by_ms,
            leases: answer.leases,
            start_windows: answer.start_windows,
            done: answer.done,
        }
    }
}

impl Answer for RebasedTime {
    fn table(&self, _now_ms: u64) -> Sheet {
        let time = |ms: u64| {
            let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
            time.map_or_else(|| format!("{ms} ms"), |time| time.to_string())
        };
        let summary = fields(&[
            ("Log time", time(self.log_time_ms)),
            ("Brokers' clocks", time(self.log_time_ms.saturating_add_signed(self.by_ms))),
            (if self.done { "Moved by" } else { "Would move by" }, offset_text(self.by_ms)),
            ("Leases that move with it", self.leases.to_string()),
            ("Start windows that stay", self.start_windows.to_string()),
        ]);
        let remedy = if self.done { "" } else { "\nDry run: nothing was moved. Add --yes to move log time.\n" };
        summary.then(remedy)
    }
}

impl Answer for RaftMembers {
    fn table(&self, _now_ms: u64) -> Sheet {
        members_table(&self.members)
    }
}

fn members_table(members: &[RaftMember]) -> Sheet {
    let member = |member: &RaftMember| {
        vec![
            member.id.to_string(),
            member.client_address.clone(),
            member.raft_address.clone(),
            if member.voter { "voter".to_owned() } else { "learner".to_owned() },
            member.matched_index.to_string(),
            member.incarnation.chars().take(8).collect(),
        ]
    };
    let heads = [
        Column::number("member"),
        Column::text("client address"),
        Column::text("raft address").rank(2),
        Column::text("vote"),
        Column::number("matched").rank(1),
        Column::text("incarnation").rank(3),
    ];
    columns(&heads, members.iter().map(member).collect(), "no members known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offsets_have_a_sign() {
        let shown = [0, -12, 999, 7_200_000, -5_400_000].map(offset_text);
        assert_eq!(shown, ["+0 ms", "-12 ms", "+999 ms", "+2h", "-1h30m"]);
    }

    #[test]
    fn a_broker_that_reaches_no_majority_has_an_unknown_clock() {
        let status = v1::GetRaftStatusResponse { id: 1, clock_offset_ms: Some(-7_200_000), ..Default::default() };
        let table = |status: &v1::GetRaftStatusResponse| {
            let brokers = vec![RaftBroker::answered("a:1".to_owned(), status)];
            RaftStatus { brokers, members: Vec::new(), old_roots: Vec::new() }.table(0).to_string()
        };
        assert!(table(&status).contains("CLOCK") && table(&status).contains("-2h"), "{}", table(&status));
        let alone = v1::GetRaftStatusResponse { clock_offset_ms: None, ..status };
        assert!(table(&alone).lines().nth(1).is_some_and(|row| row.ends_with('?')), "{}", table(&alone));
    }

    #[test]
    fn the_status_shows_who_still_needs_an_old_root() {
        let root = v1::OldRoot {
            sha256: "4b0b5a55bc0a".repeat(5),
            clusters: vec!["edge".to_owned(), "ncc-main".to_owned()],
            cluster_count: 5,
            user_count: 7,
            last_not_after_ms: 3 * 86_400_000,
        };
        let status = |old_roots| RaftStatus { brokers: Vec::new(), members: Vec::new(), old_roots };
        let text = status(vec![root.into()]).table(0).to_string();
        let row = text.lines().last().unwrap_or_default();
        for part in ["4b0b5a55bc0a ", " 7 ", "ends in 3d", "edge, ncc-main, and 3 more"] {
            assert!(row.contains(part), "{part}: {text}");
        }
        assert!(!status(Vec::new()).table(0).to_string().contains("ROOT"));
        let issuing = |root: &str| RaftBroker { issuing_root_sha256: root.to_owned(), ..RaftBroker::default() };
        let text = |brokers| RaftStatus { brokers, ..status(Vec::new()) }.table(0).to_string();
        assert!(text(vec![issuing("aa"), issuing("bb")]).contains("different roots, 0 under aa, 0 under bb"));
        assert!(!text(vec![issuing("aa"), issuing("aa")]).contains("different roots"));
    }

    #[test]
    fn the_status_fails_without_a_leader_and_with_two_groups() {
        let broker = |id: u64, leader: u64, group: &str| RaftBroker {
            id,
            leader,
            group: group.to_owned(),
            role: if id == leader { "leader" } else { "follower" }.to_owned(),
            ..RaftBroker::default()
        };
        let health =
            |brokers: Vec<RaftBroker>| RaftStatus { brokers, members: Vec::new(), old_roots: Vec::new() }.health();
        let down = RaftBroker::silent("b:7443".to_owned(), "no answer within 5 s".to_owned());
        assert_eq!(health(vec![broker(1, 1, "aa"), broker(2, 1, "aa"), down.clone()]), Ok(()));
        assert_eq!(health(vec![broker(1, 0, "aa"), down]), Err("no broker leads".to_owned()));
        let split = health(vec![broker(1, 1, "aa"), broker(2, 1, "aa"), broker(3, 3, "bb")]).expect_err("a split");
        assert!(split.contains("TWO GROUPS") && split.contains("1 and 2 of group aa, 3 of group bb"), "{split}");
        let broken = RaftBroker { violations: vec!["no GPU is lent twice".to_owned()], ..broker(1, 1, "aa") };
        assert!(health(vec![broken]).expect_err("a broken invariant").contains("no GPU is lent twice"));
    }

    #[test]
    fn a_dry_run_of_a_rebase_says_how_to_do_it() {
        let answer = v1::RebaseTimeResponse { log_time_ms: 1_795_372_800_000, by_ms: -3_600_000, ..Default::default() };
        let table = RebasedTime::from(answer).table(0).to_string();
        assert!(table.contains("2026-11-22T18:40:00Z") && table.contains("2026-11-22T17:40:00Z"), "{table}");
        assert!(table.contains("Would move by") && table.contains("-1h") && table.contains("--yes"), "{table}");
    }
}
