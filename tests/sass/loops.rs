//! Answers from a function's control flow: the order of blocks in memory says little about loops.

use super::listing::{matches, Instruction};
use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::Incoming;
use std::collections::{BTreeSet, HashMap};

/// The blocks of a function, each as the range of its instructions, and where control goes from each.
type Flow = DiGraph<std::ops::Range<usize>, ()>;

/// The instructions of each loop that has an instruction that `is_main`, and no loop inside that has one.
pub fn innermost<'a>(code: &'a [Instruction], is_main: &dyn Fn(&str) -> bool) -> Vec<Vec<&'a str>> {
    let Some(flow) = flow(code) else { return Vec::new() };
    let names = |block: NodeIndex| code[flow[block].clone()].iter().map(|instruction| instruction.name.as_str());
    let mut loops = loops(&flow);
    loops.retain(|blocks| blocks.iter().any(|&block| names(block).any(is_main)));
    let is_innermost =
        |of: &&BTreeSet<NodeIndex>| !loops.iter().any(|other| other.len() < of.len() && other.is_subset(of));
    let innermost: BTreeSet<&BTreeSet<NodeIndex>> = loops.iter().filter(is_innermost).collect();
    innermost.into_iter().map(|blocks| blocks.iter().copied().flat_map(names).collect()).collect()
}

/// The first instruction that `is_load` and that control reaches without an instruction that `waits`.
pub fn reached_before<'a>(
    code: &'a [Instruction],
    waits: &dyn Fn(&str) -> bool,
    is_load: &dyn Fn(&str) -> bool,
) -> Option<&'a str> {
    let flow = flow(code)?;
    let (mut seen, mut open) = (BTreeSet::new(), vec![NodeIndex::new(0)]);
    while let Some(block) = open.pop() {
        if !seen.insert(block) {
            continue;
        }
        let before = code[flow[block].clone()].iter().map(|instruction| instruction.name.as_str());
        match before.clone().find(|name| waits(name) || is_load(name)) {
            Some(name) if is_load(name) => return Some(name),
            Some(_) => {}
            None => open.extend(flow.neighbors(block)),
        }
    }
    None
}

/// The natural loop of each edge that goes back to a block that dominates the edge's start.
fn loops(flow: &Flow) -> Vec<BTreeSet<NodeIndex>> {
    let dominators = simple_fast(flow, NodeIndex::new(0));
    let goes_back = |&(from, to): &(NodeIndex, NodeIndex)| {
        dominators.dominators(from).is_some_and(|mut above| above.any(|block| block == to))
    };
    let edges = flow.edge_indices().filter_map(|edge| flow.edge_endpoints(edge));
    edges
        .filter(goes_back)
        .map(|(from, to)| {
            let mut body = BTreeSet::from([to]);
            let mut open = vec![from];
            while let Some(block) = open.pop() {
                if body.insert(block) {
                    open.extend(flow.neighbors_directed(block, Incoming));
                }
            }
            body
        })
        .collect()
}

/// `None`: there is no code.
fn flow(code: &[Instruction]) -> Option<Flow> {
    code.first()?;
    let at: HashMap<u32, usize> =
        code.iter().enumerate().map(|(index, instruction)| (instruction.address, index)).collect();
    let target = |instruction: &Instruction| instruction.target.and_then(|to| at.get(&to).copied());
    let starts: BTreeSet<usize> = code
        .iter()
        .enumerate()
        .flat_map(|(index, instruction)| [target(instruction), instruction.ends_block().then_some(index + 1)])
        .flatten()
        .chain([0])
        .filter(|&start| start < code.len())
        .collect();
    let mut flow = Flow::new();
    let mut block_at = HashMap::new();
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    for (&start, end) in starts.iter().zip(ends) {
        block_at.insert(start, flow.add_node(start..end));
    }
    for block in flow.node_indices() {
        let end = flow[block].end;
        let last = &code[end - 1];
        let mut next: Vec<usize> = if last.is_branch() { target(last).into_iter().collect() } else { Vec::new() };
        next.extend((last.falls_through() && end < code.len()).then_some(end));
        for to in next {
            flow.update_edge(block, block_at[&to], ());
        }
    }
    // The listing does not say where an indirect branch goes. Compilers put its targets behind it: blocks that nothing leads to belong to the last
    // indirect branch before them.
    let is_indirect = |block: &NodeIndex| code[flow[*block].end - 1].name.starts_with("BRX");
    let indirect: Vec<NodeIndex> = flow.node_indices().filter(is_indirect).collect();
    let meetings: BTreeSet<usize> = code.iter().filter(|i| matches(&i.name, "BSSY")).filter_map(target).collect();
    let is_orphan = |block: &NodeIndex| block.index() != 0 && !meetings.contains(&flow[*block].start);
    let orphans: Vec<NodeIndex> = flow.externals(Incoming).filter(is_orphan).collect();
    for to in orphans {
        let before = indirect.iter().rfind(|from| flow[**from].end <= flow[to].start);
        before.map(|from| flow.update_edge(*from, to, ()));
    }
    lead_on_from_meetings(code, &mut flow, &block_at);
    Some(flow)
}

/// Threads that meet at a BSYNC go on where the BSSY that set the barrier up says: the edges to each that reaches it
/// (reaching definitions: Aho, Lam, Sethi, Ullman, Compilers, 9.2.4), and the barrier is gone: a function that is called later has none of it. An edge lets more
/// of them reach others.
fn lead_on_from_meetings(code: &[Instruction], flow: &mut Flow, block_at: &HashMap<usize, NodeIndex>) {
    let mut open: Vec<NodeIndex> = flow.node_indices().collect();
    // The barriers that are set up before each block, and where each leads.
    let mut before: Vec<BTreeSet<(&str, u32)>> = vec![BTreeSet::new(); open.len()];
    while let Some(block) = open.pop() {
        let mut barriers = before[block.index()].clone();
        for instruction in &code[flow[block].clone()] {
            let name = instruction.barrier.as_str();
            if matches(&instruction.name, "BSSY") {
                barriers.retain(|(barrier, _)| *barrier != name);
                barriers.extend(instruction.target.map(|to| (name, to)));
            } else if matches(&instruction.name, "BSYNC") {
                for (_, to) in barriers.iter().filter(|(barrier, _)| *barrier == name) {
                    let index = code.iter().position(|instruction| instruction.address == *to);
                    index.map(|index| flow.update_edge(block, block_at[&index], ()));
                }
                if !instruction.falls_through() {
                    barriers.retain(|(barrier, _)| *barrier != name);
                }
            }
        }
        for next in flow.neighbors(block) {
            let known = before[next.index()].len();
            before[next.index()].extend(&barriers);
            if before[next.index()].len() > known {
                open.push(next);
            }
        }
    }
}
