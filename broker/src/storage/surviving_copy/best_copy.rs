//! Finds the copy that reaches farthest in a data directory: the log in use, or the remains of an earlier incarnation.

use std::path::{Path, PathBuf};

use super::{SurvivingCopy, read_at};
use crate::storage::lost;
use crate::storage::marker::Marker;
use crate::storage::reached::LogPosition;
use crate::storage::storage_error::StorageError;

/// The best copy in a data directory.
pub(crate) struct BestCopy {
    pub(crate) dir: PathBuf,
    pub(crate) copy: SurvivingCopy,
    /// The other directories, and why each is not used.
    pub(crate) others: Vec<(PathBuf, String)>,
}

/// Reads the copies in `group_dir`, which stay as they are; blocks.
pub(crate) fn read_best(group_dir: &Path, id: u64) -> Result<BestCopy, StorageError> {
    let group = Marker::read(group_dir, id)?.and_then(|marker| marker.group);
    let mut best: Option<(PathBuf, SurvivingCopy)> = None;
    let mut others = Vec::new();
    for dir in std::iter::once(group_dir.to_owned()).chain(lost::remains(group_dir)) {
        let copy = match read_at(&dir, group_dir, id) {
            Ok(copy) => copy,
            Err(StorageError::NoEntry { .. }) => {
                others.push((dir, "it has neither a log entry nor a snapshot".to_owned()));
                continue;
            }
            // What the damage hides may reach farther than all remains.
            Err(error) if dir == group_dir => return Err(error),
            Err(error) => {
                others.push((dir, error.to_string()));
                continue;
            }
        };
        if matches!((&copy.group, &group), (Some(of_copy), Some(group)) if of_copy != group) {
            others.push((dir, format!("{}, of another group", where_it_ends(&copy))));
            continue;
        }
        let worse = match best.take() {
            Some(earlier) if earlier.1.end() >= copy.end() => {
                best = Some(earlier);
                Some((dir, copy))
            }
            earlier => {
                best = Some((dir, copy));
                earlier
            }
        };
        others.extend(worse.map(|(dir, copy)| (dir, where_it_ends(&copy))));
    }
    let Some((dir, mut copy)) = best else {
        let looked: Vec<String> = others.iter().map(|(dir, why)| format!("{}: {why}", dir.display())).collect();
        return Err(StorageError::NothingLeft { path: group_dir.to_owned(), looked: looked.join("; ") });
    };
    // The file that names it may have been lost with the log.
    copy.group = copy.group.or(group);
    Ok(BestCopy { dir, copy, others })
}

fn where_it_ends(copy: &SurvivingCopy) -> String {
    let LogPosition { term, index } = copy.end();
    format!("it ends at entry {index} of term {term}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use comity_core::State;
    use openraft::vote::leader_id_std::CommittedLeaderId;

    use super::*;
    use crate::replication::identity::GroupId;
    use crate::replication::member::MemberAddress;
    use crate::replication::types::LogId;
    use crate::storage::found_on;

    /// Makes a copy that ends at an entry of term 1, of a group of its own.
    fn copy_up_to(index: u64, dir: &Path) -> GroupId {
        let last = LogId::new(CommittedLeaderId::new(1), index);
        let (state, audit, replaces) = (State::default(), Vec::new(), Vec::new());
        let copy = SurvivingCopy { state, last, audit, committed: None, group: None, replaces };
        let address = MemberAddress { raft: "a:1".to_owned(), client: "a:2".to_owned() };
        found_on(copy, (dir, dir), 1, address).unwrap()
    }

    /// Like a start that finds the log gone: it sets the remains aside, and keeps the name of the group.
    fn lose_log(group_dir: &Path) -> PathBuf {
        let group = Marker::read(group_dir, 1).unwrap().and_then(|marker| marker.group);
        fs::remove_dir_all(group_dir.join("log")).unwrap();
        let aside = lost::set_aside(group_dir).unwrap();
        Marker::fresh(1, group).write(group_dir).unwrap();
        fs::create_dir(group_dir.join("log")).unwrap();
        aside
    }

    fn read_best_error(group_dir: &Path) -> String {
        read_best(group_dir, 1).err().unwrap().to_string()
    }

    #[test]
    fn the_copy_that_reaches_farthest_is_used_however_often_the_log_was_lost() {
        let home = tempfile::tempdir().unwrap();
        let group_dir = home.path().join("group");
        let group = copy_up_to(70, &group_dir);
        let best = read_best(&group_dir, 1).unwrap();
        assert_eq!((best.dir, best.copy.end().index, best.others.len()), (group_dir.clone(), 70, 0));

        // The later remains are empty, and do not displace those of the first loss.
        let first = lose_log(&group_dir);
        for _ in 0..4 {
            lose_log(&group_dir);
        }
        let best = read_best(&group_dir, 1).unwrap();
        assert_eq!((best.dir, best.copy.end().index, &best.copy.group), (first, 70, &Some(group)));
        assert_eq!(best.others[0], (group_dir.clone(), "it has neither a log entry nor a snapshot".to_owned()));
        let left: Vec<PathBuf> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [group_dir], "nothing stays beside it");
    }

    #[test]
    fn remains_of_another_group_are_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let group_dir = home.path().join("group");
        copy_up_to(7, &group_dir);
        copy_up_to(99, &group_dir.join("lost-3"));
        let best = read_best(&group_dir, 1).unwrap();
        assert_eq!((best.dir, best.copy.end().index), (group_dir.clone(), 7));
        let why = "it ends at entry 99 of term 1, of another group";
        assert_eq!(best.others, [(group_dir.join("lost-3"), why.to_owned())]);
    }

    #[test]
    fn errors_name_what_the_operator_has_and_how_to_begin_again() {
        let home = tempfile::tempdir().unwrap();
        let group_dir = home.path().join("group");
        let gone = read_best_error(&group_dir);
        assert!(gone.contains(&format!("{}: it has neither a log entry", group_dir.display())), "{gone}");
        copy_up_to(7, &group_dir);
        let aside = lose_log(&group_dir);
        fs::remove_dir_all(aside.join("snapshots")).unwrap();
        let empty = read_best_error(&group_dir);
        assert!(empty.contains(&format!("{}: it has neither a log entry", aside.display())), "{empty}");
        assert!(empty.contains("`comity-broker init`") && !empty.contains("group.reading"), "{empty}");

        // Damage is not mistaken for a loss, and its error names the file.
        copy_up_to(9, &home.path().join("other"));
        fs::rename(home.path().join("other"), group_dir.join("lost-7")).unwrap();
        let log = group_dir.join("log");
        fs::remove_dir_all(&log).unwrap();
        fs::write(&log, "a file").unwrap();
        let damaged = read_best_error(&group_dir);
        assert!(damaged.contains(&log.display().to_string()) && !damaged.contains("group.reading"), "{damaged}");
    }
}
