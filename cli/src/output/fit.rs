//! Chooses the columns that fit a width, and how wide each is.

use super::column::Column;

/// Blanks between two columns.
pub(super) const GAP: usize = 2;
/// A text that is cut or wrapped keeps at least this width, so that it can be read.
const MIN_TEXT_WIDTH: usize = 20;
/// A column that is never hidden and has to be cut keeps at least this width.
const MIN_CUT_WIDTH: usize = 6;

/// A column that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownColumn {
    /// Its index in the table.
    pub(super) index: usize,
    /// Its width.
    pub(super) width: usize,
}

/// The layout of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// The columns that are shown, from the left.
    pub(super) shown: Vec<ShownColumn>,
    /// Number of hidden columns.
    pub(super) hidden: usize,
    /// Whether texts are below their row, because the columns beside them leave no room.
    pub(super) stacked: bool,
}

impl Fit {
    /// Every column at its full width.
    pub(super) fn full(widths: &[usize]) -> Self {
        let shown = widths.iter().enumerate().map(|(index, width)| ShownColumn { index, width: *width }).collect();
        Self { shown, hidden: 0, stacked: false }
    }

    /// The columns that fit `width`. `widths`: each column's longest text or head.
    pub(super) fn within(columns: &[Column], widths: &[usize], width: usize) -> Self {
        let least = |shown: &ShownColumn| {
            let natural = widths[shown.index];
            if columns[shown.index].is_flexible() { natural.min(MIN_TEXT_WIDTH) } else { natural }
        };
        let mut shown = Self::full(widths).shown;
        loop {
            let needed: usize = shown.iter().map(least).sum::<usize>() + gaps(shown.len());
            if needed <= width {
                break;
            }
            // The last of equals.
            let first = shown.iter().enumerate().max_by_key(|(_, it)| columns[it.index].rank);
            match first {
                Some((at, it)) if columns[it.index].rank > 0 => {
                    shown.remove(at);
                }
                _ => return Self::narrow(columns, widths, shown, width),
            }
        }
        let mut room = width - shown.iter().map(least).sum::<usize>() - gaps(shown.len());
        for column in &mut shown {
            let (natural, least) = (column.width, least(&*column));
            // Texts on the left get their whole width first: in every table, the most important one comes first.
            column.width = natural.min(least + room);
            room -= column.width - least;
        }
        let hidden = widths.len() - shown.len();
        Self { shown, hidden, stacked: false }
    }

    /// The columns that are never hidden do not fit: puts wrapped texts below their rows, and cuts the widest columns.
    fn narrow(columns: &[Column], widths: &[usize], mut shown: Vec<ShownColumn>, width: usize) -> Self {
        let hidden = widths.len() - shown.len();
        let stacked = shown.iter().any(|it| columns[it.index].is_flexible());
        if stacked {
            shown.retain(|it| !columns[it.index].is_flexible());
        }
        loop {
            let needed: usize = shown.iter().map(|it| it.width).sum::<usize>() + gaps(shown.len());
            let Some(over) = needed.checked_sub(width).filter(|over| *over > 0) else { break };
            let Some(widest) = shown.iter_mut().max_by_key(|it| it.width).filter(|it| it.width > MIN_CUT_WIDTH) else {
                break;
            };
            widest.width -= over.min(widest.width - MIN_CUT_WIDTH).div_ceil(2).max(1);
        }
        Self { shown, hidden, stacked }
    }
}

fn gaps(columns: usize) -> usize {
    columns.saturating_sub(1) * GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("lease"),
        Column::text("origin").rank(2),
        Column::number("gpus").rank(1),
        Column::message("message"),
    ];

    fn layout(width: usize) -> (Vec<(usize, usize)>, usize, bool) {
        let fit = Fit::within(&COLUMNS, &[7, 15, 4, 60], width);
        (fit.shown.iter().map(|it| (it.index, it.width)).collect(), fit.hidden, fit.stacked)
    }

    #[test]
    fn the_highest_rank_is_hidden_first_and_the_text_gets_the_rest() {
        assert_eq!(layout(200), (vec![(0, 7), (1, 15), (2, 4), (3, 60)], 0, false));
        assert_eq!(layout(60), (vec![(0, 7), (1, 15), (2, 4), (3, 28)], 0, false));
        assert_eq!(layout(52), (vec![(0, 7), (1, 15), (2, 4), (3, 20)], 0, false));
        assert_eq!(layout(51), (vec![(0, 7), (2, 4), (3, 36)], 1, false));
        assert_eq!(layout(30), (vec![(0, 7), (3, 21)], 2, false));
        assert_eq!(layout(20), (vec![(0, 7)], 2, true));
    }

    #[test]
    fn columns_that_are_never_hidden_are_cut_in_the_end() {
        let columns = [Column::text("a"), Column::text("b")];
        let fit = Fit::within(&columns, &[40, 30], 40);
        assert!(fit.shown.iter().map(|it| it.width).sum::<usize>() + GAP <= 40, "{fit:?}");
        assert_eq!((fit.shown.len(), fit.hidden), (2, 0));
    }
}
