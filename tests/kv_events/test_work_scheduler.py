import asyncio

from gateway.kv_events.work_scheduler import WorkScheduler


class Steps:
    """Work of so many steps; notes the turn of the loop at which each was done."""

    def __init__(self, pump, count, turns):
        self.pump = pump
        self.left = count
        self.turns = turns
        self.done_at = []

    def step(self):
        if not self.left:
            return False
        self.left -= 1
        self.done_at.append(self.turns[0])
        self.pump.wake(self)  # as a feed does when its step brings more work
        spin()
        return True


def spin():
    """Something that takes a hundredth of what may be done in one turn, give or take."""
    sum(range(500))


async def turns_until(done, turns):
    while not done():
        await asyncio.sleep(0)
        turns[0] += 1


def test_much_work_is_spread_over_many_turns(run):
    async def body():
        pump, turns = WorkScheduler(), [0]
        worker = Steps(pump, 20_000, turns)
        pump.wake(worker)
        await turns_until(lambda: not worker.left, turns)
        most = max(worker.done_at.count(turn) for turn in set(worker.done_at))
        assert most < 2000

    run(body)


def test_workers_take_turns(run):
    async def body():
        pump, turns = WorkScheduler(), [0]
        workers = [Steps(pump, 3000, turns) for _ in range(3)]
        for worker in workers:
            pump.wake(worker)
        await turns_until(lambda: not workers[0].left, turns)
        assert all(worker.left <= 2 for worker in workers)

    run(body)


def test_idle_worker_is_woken_again(run):
    async def body():
        pump, turns = WorkScheduler(), [0]
        worker = Steps(pump, 1, turns)
        pump.wake(worker)
        await asyncio.sleep(0.01)
        assert worker.left == 0
        worker.left = 2
        pump.wake(worker)
        pump.wake(worker)
        await asyncio.sleep(0.01)
        assert worker.left == 0

    run(body)


def test_forgotten_worker_is_not_asked_again(run):
    async def body():
        pump, turns = WorkScheduler(), [0]
        worker = Steps(pump, 5, turns)
        pump.wake(worker)
        pump.forget(worker)
        await asyncio.sleep(0.01)
        assert worker.left == 5
        pump.forget(worker)

    run(body)
