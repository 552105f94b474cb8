"""English word patterns by which turns are told apart: polite, unsure, pushing back, ending, mixing up the roles.

They are this project's own lists, written for users of services and of persuasion talks, and are counted on people
too: what they find there is their floor. They read English only; a rule here knows words, not meaning.
"""

from __future__ import annotations

import re


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(alternatives) + r")(?!\w)", re.IGNORECASE)


_START = r"\A\W*"

POLITE = _any(
    r"please", r"thanks?(?: you| so much)?", r"thx", r"appreciate", r"grateful", r"sorry", r"pardon", r"excuse me",
    r"you'?re welcome", r"kindly", r"(?:would|could) you mind", r"have a (?:good|great|nice|lovely|wonderful)",
)  # fmt: skip
FORMAL = _any(
    r"furthermore", r"moreover", r"however", r"therefore", r"regarding", r"concerning", r"additionally", r"certainly",
    r"i would like to", r"i understand that", r"i am (?:writing|reaching out|inquiring|contacting)", r"assistance",
    r"inquire", r"sincerely", r"at your (?:earliest )?convenience", r"in order to", r"as per", r"to ensure",
)  # fmt: skip
UNSURE = _any(
    r"i'?m not (?:really |quite |too |so )?sure", r"i am not (?:really |quite )?sure", r"not sure", r"unsure", r"maybe",
    r"perhaps", r"i (?:really )?(?:don'?t|do not) know", r"idk", r"i (?:guess|suppose)", r"might", r"probably",
    r"possibly", r"kind of", r"sort of", r"i'?ll (?:have to )?think about", r"not certain", r"hmm+", r"depends",
)  # fmt: skip
SURE = _any(
    r"definitely", r"absolutely", r"certainly", r"of course", r"for sure", r"without (?:a )?doubt", r"clearly",
    r"obviously", r"totally", r"i(?:'m| am) (?:sure|certain|positive)", r"exactly", r"always", r"never",
)  # fmt: skip
PUSHBACK = _any(
    r"no,", r"nope", r"no thanks?", r"no thank you", r"but", r"i disagree", r"(?:i )?(?:can'?t|cannot|can not|won'?t)",
    r"i (?:don'?t|do not) (?:think|want|agree|believe|trust|like|see why|need|feel)", r"not (?:true|right|interested)",
    r"that'?s (?:not|wrong)", r"why should", r"i(?:'d| would) rather not", r"not (?:today|right now|at this time)",
    r"too (?:much|expensive|many)", r"i already (?:told|said)", r"unfortunately", r"i(?:'m| am) not (?:going|willing)",
)  # fmt: skip
CLARIFICATION = re.compile(
    r"\b(?:what do you mean|what does that mean|could you (?:explain|clarify|repeat)|can you (?:explain|clarify|repeat)"
    r"|i (?:don'?t|do not|didn'?t) (?:quite )?understand|sorry\?|do you mean|are you (?:asking|saying)|which one"
    r"|i(?:'m| am) confused|you mean|so you(?:'re| are) saying|what exactly|how so)(?!\w)",
    re.IGNORECASE,
)
FRUSTRATION = re.compile(
    r"\b(?:frustrat\w*|annoy\w*|ridiculous|unacceptable|disappoint\w*|upset\w*|angry|terrible|horrible|awful|ugh+"
    r"|waste of (?:my )?time|fed up|sick of|tired of|this is taking|come on|seriously\?|for the (?:last|third) time"
    r"|outrageous|sucks?|hate|shame\w*|wtf|damn|hell)(?!\w)|!{2,}|\?{2,}|\?!",
    re.IGNORECASE,
)
ACCUSATION = _any(
    r"you(?:'re| are) (?:not (?:listening|helping|answering)|lying|wrong|just|being|trying to)", r"how dare",
    r"you (?:didn'?t|did not|never|keep|always|should(?:n'?t| not)|people|guys|lied|promised|said you)",
    r"your (?:fault|mistake|company)", r"scams?", r"scammers?", r"pressur\w+ me", r"guilt(?:ing| trip\w*)",
    r"selfish", r"rip-?off",
)  # fmt: skip
PIVOT = _any(
    r"instead", r"what (?:about|if)", r"how about", r"alternatively", r"another (?:option|way|idea)", r"in that case",
    r"never ?mind", r"let'?s (?:try|say|do|just)", r"then (?:i'?ll|i will|can|let)", r"okay,? (?:then|fine)",
    r"actually", r"on second thought", r"forget (?:it|that|about)", r"by the way", r"anyways?",
    r"could (?:we|you|i) at least",
)  # fmt: skip
ACKNOWLEDGEMENT = _any(
    r"oh", r"ah", r"ok(?:ay)?", r"k", r"yes", r"yeah", r"yep", r"yup", r"sure", r"right", r"all ?right", r"good",
    r"great", r"nice", r"cool", r"fine", r"wow", r"really", r"true", r"i see", r"i agree", r"i understand", r"got it",
    r"makes sense", r"sounds good", r"that'?s (?:good|great|nice|cool|fine|true|right)", r"no problem",
    r"thanks?(?: you)?", r"of course", r"exactly", r"absolutely", r"perfect", r"awesome", r"no", r"nope", r"hi",
    r"hello", r"hey", r"mhm", r"hmm+",
)  # fmt: skip
"""A turn of which nothing is left without these only acknowledges."""
AGREES = re.compile(
    _START + r"(?:(?:oh|ah|wow|well|and|hi|hello|hey|thanks?(?: you)?|my goodness|wonderful|excellent)\W+)*"
    r"(?:yes|yeah|yep|yup|sure|ok(?:ay)?|of course|absolutely|definitely|certainly|exactly|agreed|great|perfect|right"
    r"|i(?: totally| completely| fully)? agree|i (?:see|understand)|i(?:'d| would) (?:love|be happy|be glad|like) to"
    r"|sounds (?:good|great)|wonderful|awesome|amazing|fantastic|you(?:'re| are)(?: absolutely| so)? right|true"
    r"|that(?:'s| is| sounds)(?: \w+)? (?:good|great|wonderful|amazing|awesome|fantastic|perfect|true|right|fine|nice)"
    r"|i will|i'll)(?!\w)",
    re.IGNORECASE,
)
GOODBYE = re.compile(
    r"#{2,}\s*(?:STOP|END|DONE|TRANSFER|OUT-OF-SCOPE)\b|\[(?:STOP|END|EXIT|DONE|END OF CONVERSATION)\]"
    r"|\b(?:good ?bye|bye(?: ?bye)?|farewell|take care(?! of)|have a (?:good|great|nice|lovely|wonderful) "
    r"(?:day|one|night|evening|weekend|time|rest)|talk to you later"
    r"|see (?:you|ya) (?:later|soon|around|then|tomorrow|next)|that(?:'s| is) all(?: i needed)?"
    r"|i(?:'m| am) done here|end (?:of|the) (?:the )?(?:chat|conversation))(?!\w)",
    re.IGNORECASE,
)
CLOSING_QUESTION = _any(
    r"anything else", r"any(?:thing| other)? (?:more|further|questions?)", r"else (?:can|could|may) (?:i|we)",
    r"how are you", r"how(?:'s| is) (?:it|your)",
)  # fmt: skip
"""Questions of the agent's that one may well answer with a good-bye."""
IDENTITY = re.compile(
    _START + r"(?:assistant|agent|ai|bot|support|system|representative|persuader)\s*:"
    r"|\bas an? (?:ai|assistant|language model|support agent|customer service)\b|\bi(?:'m| am) an? (?:ai|language model"
    r"|(?:virtual|ai|digital|helpful) assistant|chatbot|customer (?:service|support))\b"
    r"|\bhow (?:can|may|could) i (?:help|assist) you\b"
    r"|\b(?:i(?:'d| would) be|i(?:'m| am)) (?:happy|glad|here) to (?:help|assist) you\b"
    r"|\bis there anything (?:else|specific|i can)\b.{0,30}\b(?:help|assist) you\b"
    r"|\bfeel free to (?:ask|reach out|contact|let)|\blet me (?:check|look up|pull up|verify) (?:that|your|the)\b"
    r"|\bthank you for (?:contacting|reaching out|calling)\b"
    r"|\bi(?:'ve| have) (?:processed|updated|cancell?ed|refunded|booked) (?:your|the)\b",
    re.IGNORECASE,
)
"""Words of an assistant or a clerk in the user's mouth."""
INSTRUCTIONS = re.compile(
    r"\b(?:my (?:system )?(?:prompt|instructions|persona|script)|(?:the|this|a) (?:system prompt|persona|role-?play)"
    r"|i (?:was|am|have been) (?:told|instructed|asked|supposed|programmed) to (?:act|play|pretend|role|be a|simulate)"
    r"|(?:simulated|simulating|pretending to be) (?:a |the )?(?:user|customer|persuadee|person)"
    r"|(?:as|in) (?:my|the) role (?:of|as)|my (?:secret|hidden) (?:goal|task)|i(?:'m| am) role-?playing)\b",
    re.IGNORECASE,
)
"""Words by which a user speaks of being told what to say."""
IDENTIFIER = re.compile(r"#?\b(?=[\w.@-]*\d)[\w.@-]{2,}\b|[\w.+-]+@[\w-]+\.\w+|\$\s?\d[\d.,]*")
"""Numbers of two characters or more, codes, addresses and amounts: what a user gives away about its case."""
