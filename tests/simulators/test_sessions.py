"""Conversations that frameworks run: the same person within one, another draw between them, bounded memory."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from players import Says

from unfrozen.core.messages import Message
from unfrozen.simulators.sessions import Reply, Sessions, split_system
from unfrozen.simulators.supply import FixedSupply

SYSTEM = "You want a refund."
HELLO = Message("user", "Hello, how can I help?")


def crowd(size: int = 8, alike: bool = False) -> FixedSupply:
    """An ensemble; each member answers with its own name, or (`alike`) all with the same words."""
    names = [f"person-{i}" for i in range(size)]
    return FixedSupply([Says(lambda v, s, name=name: "Yes." if alike else name, name) for name in names])


def ask(sessions: Sessions, *messages: Message, session: str | None = None, seed: int | None = None) -> Reply:
    return asyncio.run(sessions.reply(SYSTEM, messages, (), session, seed))


def person(reply: Reply) -> str:
    return reply.session.speaker.info.label


def on_from(reply: Reply, *before: Message, said: str = "And why?") -> tuple[Message, ...]:
    return (*before, reply.turn.message, Message("user", said))


def test_a_conversation_keeps_its_person_to_its_end() -> None:
    sessions = Sessions(crowd())
    for _ in range(20):
        messages: tuple[Message, ...] = (HELLO,)
        reply = ask(sessions, *messages)
        first = person(reply)
        for _ in range(5):
            messages = on_from(reply, *messages)
            reply = ask(sessions, *messages)
            assert person(reply) == first
            assert reply.known == len(messages) - 1


def test_conversations_that_begin_with_the_same_words_meet_different_people() -> None:
    sessions = Sessions(crowd())
    met = Counter(person(ask(sessions, HELLO)) for _ in range(400))
    assert len(met) == 8
    assert max(met.values()) < 100


def test_conversations_that_stand_at_the_same_point_with_different_replies_are_told_apart() -> None:
    sessions = Sessions(crowd())
    replies = [ask(sessions, HELLO) for _ in range(50)]
    for reply in reversed(replies):
        assert person(ask(sessions, *on_from(reply, HELLO))) == person(reply)


def test_where_nothing_tells_conversations_apart_each_is_still_gone_on_with_once() -> None:
    sessions = Sessions(crowd(alike=True))
    replies = [ask(sessions, HELLO) for _ in range(30)]
    again = [ask(sessions, *on_from(reply, HELLO)) for reply in replies]
    assert Counter(r.session.id for r in again) == Counter(r.session.id for r in replies)


def test_a_repeated_request_meets_the_same_person() -> None:
    sessions = Sessions(crowd())
    reply = ask(sessions, HELLO)
    messages = on_from(reply, HELLO)
    assert {ask(sessions, *messages).session.id for _ in range(3)} == {reply.session.id}


def test_a_reply_that_a_framework_rewrote_does_not_make_a_new_person() -> None:
    sessions = Sessions(crowd())
    reply = ask(sessions, HELLO)
    edited = (HELLO, Message("assistant", "(whispers) " + reply.text), Message("user", "Louder, please."))
    assert ask(sessions, *edited).session is reply.session


def test_blanks_that_a_framework_cuts_do_not_matter() -> None:
    sessions = Sessions(crowd())
    reply = ask(sessions, Message("user", " Hello \n"))
    ask(sessions, HELLO)
    cut = (Message("user", "Hello"), Message("assistant", f" {reply.text}\n"), Message("user", "And?"))
    assert ask(sessions, *cut).session is reply.session


def test_a_name_decides_who_plays_also_after_a_restart() -> None:
    names = [f"episode-{i}" for i in range(40)]
    before, after = Sessions(crowd(), seed=3), Sessions(crowd(), seed=3)
    people = [person(ask(before, HELLO, session=name)) for name in names]
    assert people == [person(ask(after, HELLO, session=name)) for name in names]
    assert len(set(people)) == 8
    assert people != [person(ask(Sessions(crowd(), seed=4), HELLO, session=name)) for name in names]


def test_a_history_that_was_not_made_here_keeps_one_person_by_its_opening() -> None:
    history = (HELLO, Message("assistant", "It broke."), Message("user", "When?"))
    longer = (*history, Message("assistant", "Yesterday."), Message("user", "How?"))
    first, second = Sessions(crowd()), Sessions(crowd())
    replies = [ask(first, *history), ask(first, *longer), ask(second, *longer)]
    assert len({r.session.id for r in replies}) == 1
    assert len({person(r) for r in replies}) == 1
    others = {person(ask(first, HELLO, Message("assistant", str(i)), Message("user", "?"))) for i in range(60)}
    assert len(others) == 8


def test_a_seed_fixes_the_reply_to_the_same_messages_and_without_one_each_is_drawn_fresh() -> None:
    sessions = Sessions(FixedSupply([Says(lambda v, s: str(s))]))
    assert len({ask(sessions, HELLO, seed=5).text for _ in range(3)}) == 1
    assert ask(sessions, HELLO, seed=5).text != ask(sessions, HELLO, seed=6).text
    fresh = [ask(sessions, HELLO) for _ in range(20)]
    assert len({r.text for r in fresh}) == 20
    assert [ask(sessions, HELLO, seed=r.seed).text for r in fresh] == [r.text for r in fresh]


def test_one_seed_for_a_whole_conversation_is_another_draw_at_every_turn() -> None:
    sessions = Sessions(FixedSupply([Says(lambda v, s: str(s))]))
    messages, said = (HELLO,), []
    for _ in range(10):
        reply = ask(sessions, *messages, seed=300)
        said.append(reply.text)
        messages = on_from(reply, *messages)
    assert len(set(said)) == 10


def test_idle_and_surplus_conversations_are_forgotten_whole() -> None:
    now = [0.0]
    sessions = Sessions(crowd(), idle=10.0, most=5, clock=lambda: now[0])
    for _ in range(50):
        reply = ask(sessions, HELLO)
        reply = ask(sessions, *on_from(reply, HELLO))
    assert len(sessions) == 5
    now[0] = 11.0
    ask(sessions, HELLO)
    assert len(sessions) == 1
    now[0] = 30.0
    ask(sessions, HELLO, session="named")
    assert (len(sessions._sessions), len(sessions._after), len(sessions._unheard)) == (1, 1, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=60), st.booleans())
def test_however_conversations_interleave_nobody_changes_within_one(order: list[int], alike: bool) -> None:
    """Told apart by their replies or named; where neither, the session is still gone on with, not lost."""
    sessions = Sessions(crowd(alike=alike))
    talks: dict[int, tuple[tuple[Message, ...], Reply]] = {}
    for talk in order:
        name = f"talk-{talk}" if alike else None
        if talk in talks:
            messages, reply = talks[talk]
            messages = on_from(reply, *messages, said=f"question {talk}")
            answer = ask(sessions, *messages, session=name)
            assert person(answer) == person(reply)
        else:
            messages = (HELLO,)
            answer = ask(sessions, *messages, session=name)
        talks[talk] = (messages, answer)


def test_the_system_prompt_is_all_system_messages_at_the_start() -> None:
    system, rest = split_system([Message("system", "a"), Message("system", "b"), HELLO, Message("system", "c")])
    assert (system, [m.content for m in rest]) == ("a\n\nb", [HELLO.content, "c"])


def test_a_caller_that_gives_up_leaves_the_sessions_whole() -> None:
    async def run() -> Reply:
        class Slow(Says):
            async def reply(self, view, seed):  # type: ignore[no-untyped-def]
                await asyncio.sleep(0.05)
                return await super().reply(view, seed)

        sessions = Sessions(FixedSupply([Slow(lambda v, s: "ok")]))
        task = asyncio.create_task(sessions.reply(SYSTEM, (HELLO,)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await sessions.reply(SYSTEM, (HELLO,))

    assert asyncio.run(run()).text == "ok"
