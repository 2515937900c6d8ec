"""Access control as RocketMQ's ACL 2.0: who somebody is, and what he may do. Pure.

    resources.py        what requests touch and what they do there; patterns of names; what a request needs
    users.py            users, and their file; a signed request → its user
    acls.py             what a user may do from where, and its file
    authorization.py    a request → resources and actions; with a user's entries → allowed, or why not
    rules.py            which requests are asked

Imports `remoting`. Begin with `authorization.py`. Java: the module auth.
"""
