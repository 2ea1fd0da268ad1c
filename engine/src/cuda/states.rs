//! States of recurrent layers in steps of several sequences, or of one that is taken back. The host keeps them between steps:
//! those of a step's sequences are brought to the device one after another, and a node that computes or reads one is
//! launched for each sequence.

use super::batch::refused;
use super::calls::{Calls, Part, Span};
use super::device::Doing as _;
use super::in_step::InStep;
use super::known::{Known, is_own_state, known};
use super::{CudaEngine, CudaError};
use crate::cpu::states::{AfterTokens, OfNodes};
use crate::cpu::{Group, RowsError};
use crate::model::{Graph, Node, row_len};
use crate::ops::{Op, Tensor};
use cudarc::driver::result;
use std::sync::Arc;

impl CudaEngine {
    /// Refuses to go back to states that are not kept.
    pub(super) fn has_states(&self, sequence: u32, tokens: usize) -> Result<(), CudaError> {
        match self.graph.is_recurrent() && self.states.after(sequence, tokens).is_none() {
            true => Err(refused(RowsError::States { sequence, tokens })),
            false => Ok(()),
        }
    }

    /// Prepares a step of these sequences.
    pub(super) fn begin_states(&mut self, groups: Vec<Group>) -> Result<(), CudaError> {
        if !self.graph.is_recurrent() {
            return Ok(());
        }
        if let Some(node) = self.graph.nodes.iter().find(|node| groups.len() > 1 && is_of_one_sequence(node)) {
            return Err(CudaError::Unsupported(format!(
                "the kernel of {} takes one sequence at a time; run each sequence alone, or use --subject cpu",
                node.id
            )));
        }
        if groups.iter().any(|group| group.rows.windows(2).any(|two| two[0] + 1 != two[1])) {
            return Err(CudaError::Unsupported(
                "rows of a sequence that do not follow each other, in a model with recurrent layers".to_owned(),
            ));
        }
        for group in &groups {
            self.has_states(group.sequence, group.positions[0] as usize)?;
        }
        let asked = groups.iter().map(|group| self.states.asked(group)).collect();
        self.in_step = InStep { asked, after: vec![AfterTokens::new(); groups.len()], groups };
        Ok(())
    }

    /// Keeps the states after a step that ran.
    pub(super) fn end_states(&mut self, ran: bool) {
        let InStep { groups, after, .. } = std::mem::take(&mut self.in_step);
        for (group, after) in groups.into_iter().zip(after).filter(|_| ran) {
            self.states.add(group.sequence, after);
        }
    }

    /// Brings the states before the step to the device.
    pub(super) fn bring_states(&self) -> Result<(), CudaError> {
        for (g, group) in self.in_step.groups.iter().enumerate() {
            let before: OfNodes = self.states.after(group.sequence, group.positions[0] as usize).unwrap_or_default();
            let calls = Calls { part: Part { sequence: g, ..Part::default() }, ..self.calls() };
            for (index, node) in self.graph.nodes.iter().enumerate().filter(|(_, node)| is_own_state(node)) {
                let zeros = || Arc::new(Tensor::zeros(Graph::extent(node, 0, 0)));
                let state = before.get(&index).cloned().unwrap_or_else(zeros);
                // SAFETY: the buffer has room for a state of each sequence; the copy ends before it returns.
                unsafe { result::memcpy_htod_sync(calls.output(index), &state.data) }
                    .doing("copying states to the device")?;
            }
        }
        Ok(())
    }

    /// How many states a node gives in the step that runs: those of each sequence.
    pub(super) fn states_of_step(&self, node: &Node) -> usize {
        if is_own_state(node) { self.in_step.groups.len().max(1) } else { 1 }
    }

    /// Whether node `index` is launched for each sequence of the step that runs.
    pub(super) fn goes_by_sequence(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        !self.in_step.groups.is_empty() && (is_own_state(node) || node.op.anatomy().looks_back())
    }

    /// Launches a node for each sequence of the step that runs.
    pub(super) fn run_by_sequence(&mut self, index: usize) -> Result<(), CudaError> {
        let is_state = is_own_state(&self.graph.nodes[index]);
        for g in 0..self.in_step.groups.len() {
            let (group, own) = (&self.in_step.groups[g], &self.in_step.asked[g]);
            let (end, rows) = (group.slots.len(), group.rows.len());
            let (mut row, mut at) = (group.rows[0], end - rows);
            let ends = if is_state { own.clone() } else { vec![end] };
            for (i, tokens) in ends.into_iter().enumerate() {
                // What was before the step is read by others, and kept.
                let before = if i == 0 { g } else { self.options.more_sequences + 1 };
                let (part, span) = (Part { row, sequence: g, before }, Span { tokens: tokens - at, first: at });
                let jobs = Calls { part, ..self.calls() }.of(index, span);
                jobs.iter().try_for_each(|job| self.run(job))?;
                (row, at) = (row + tokens - at, tokens);
                if is_state {
                    let state = self.state(index, part)?;
                    self.in_step.after[g].entry(tokens).or_default().insert(index, Arc::new(state));
                }
            }
        }
        Ok(())
    }

    /// A state as it is now.
    fn state(&self, index: usize, part: Part) -> Result<Tensor<f32>, CudaError> {
        let node = &self.graph.nodes[index];
        let mut state = Tensor::zeros(Graph::extent(node, 0, 0));
        debug_assert_eq!(state.data.len(), row_len(node));
        self.stream.synchronize().doing("running a stage")?;
        let from = Calls { part, ..self.calls() }.output(index);
        // SAFETY: the buffer has a state of each sequence, of so many elements.
        unsafe { result::memcpy_dtoh_sync(&mut state.data, from) }.doing("reading a state")?;
        Ok(state)
    }
}

/// Whether a node's kernel goes by the positions of one sequence.
fn is_of_one_sequence(node: &Node) -> bool {
    let Op::Defined(op) = &node.op else { return false };
    matches!(known(op), Some(Known::Ngrams(_) | Known::BlockScores(_) | Known::TopBlocks(_) | Known::ChosenWeights(_)))
}
